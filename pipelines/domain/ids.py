"""Names of things that cross packages.

A recovery point keeps the state of an operator under an id that is a hash of the operator's uid.

Source: Flink, `StreamGraphHasherV2` (murmur3_128 of the UTF-8 uid, seed 0, in Guava's byte order).
"""

import re
from typing import NamedTuple, NewType

import mmh3

CheckpointId = NewType("CheckpointId", int)
"""Increases by one per trigger within a run, also across restarts; the first is 1."""

Attempt = NewType("Attempt", int)
"""The fencing number of a run: one per start of its dataflow, increasing; the first is 1."""

RunId = NewType("RunId", str)
"""One submission or restore of a pipeline, which is also one lineage of recovery points."""

RequestId = NewType("RequestId", str)
"""A person's request. The requester chooses the id, so that delivering it twice is harmless."""

Uid = NewType("Uid", str)
"""The author's name of an operator. State is mapped by it, so it is compulsory and unique."""

ChannelId = NewType("ChannelId", str)
"""`<upstream uid>[i]><downstream uid>.<input>[j]`, see `channel_id`."""

NO_CHECKPOINT = CheckpointId(0)

BUILD_ON_NOTHING = CheckpointId(-1)
"""Replaces the confirmed checkpoint if that is damaged: increments start from nothing."""

_CHANNEL = re.compile(r"([^\[\]>]+)\[(\d+)\]>([^\[\]>]+)\.(\d+)\[(\d+)\]")  # no uid holds a bracket


def channel_id(upstream: Uid, source: int, downstream: Uid, port: int, target: int) -> ChannelId:
    return ChannelId(f"{upstream}[{source}]>{downstream}.{port}[{target}]")


class ChannelEnds(NamedTuple):
    """The parts of a channel's name. `source` and `target` are subtask indices."""

    upstream: Uid
    source: int
    downstream: Uid
    port: int
    target: int


def channel_ends(channel: ChannelId) -> ChannelEnds:
    """Raises ValueError if this is not a channel's name."""
    match = _CHANNEL.fullmatch(channel)
    if match is None:
        raise ValueError(f"{channel!r} names no channel")
    upstream, source, downstream, port, target = match.groups()
    return ChannelEnds(Uid(upstream), int(source), Uid(downstream), int(port), int(target))


def operator_id(uid: Uid) -> str:
    """32 hexadecimal characters, equal to what Flink derives from the same uid."""
    return mmh3.mmh3_x64_128_digest(uid.encode(), 0).hex()
