"""The bounds of the data network, each a named setting. Owns no behaviour."""

from dataclasses import dataclass

from pipelines.channels.handshake import HANDSHAKE_TIMEOUT_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """The most that the network of one slot allocates, waits for and accepts."""

    max_frame_bytes: int = 512 << 20  # one serialized batch
    max_schema_bytes: int = 4 << 20
    max_channel_name_bytes: int = 4 << 10
    max_origin_bytes: int = 64 << 10  # names of sources and splits
    max_location_bytes: int = 8 << 10  # of a checkpoint; paths and keys of objects are shorter
    max_channels_per_connection: int = 1 << 16
    max_pending_handshakes: int = 64
    shortage_pause_ms: int = 100  # of a port without files or threads for a caller
    connect_timeout_ms: int = 10_000
    handshake_timeout_ms: int = HANDSHAKE_TIMEOUT_MS
    unanswered_ms: int = 10_000  # after that, a silent peer's connection is lost; heartbeat.timeout
    close_timeout_ms: int = 1_000  # for the peer to receive what was sent before the end


MAX_COALESCED_BYTES = 1 << 20
"""The most bytes of batches handled as one: joining copies them, and large ones gain nothing."""

MAX_COALESCED_BATCHES = 1_024
"""They leave the queue in one step, during which writers wait."""

MAX_QUEUED_MARKS = 100_000
"""Marks cost no credit, so their count bounds a channel whose reader has stalled. Adjacent marks of
event time merge in the queue, so only barriers can reach the bound."""
