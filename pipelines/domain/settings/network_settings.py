"""The rows of the settings table about channels, and about addresses and encryption between slots.

Part of `setting_table.DEFINITIONS`. `runtime.networking` lets a machine's environment override some
of them.
"""

import re

from pipelines.domain.settings.readers import (
    Definition,
    count_within,
    duration_within,
    true_or_false,
)

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")
COALESCING = "pipeline.coalescing."
DEBLOATING = "taskmanager.network.memory.buffer-debloat."
_SSL = "security.ssl.internal."
TLS_ENABLED = _SSL + "enabled"
TLS_CERTIFICATE = _SSL + "certificate-file"
TLS_KEY = _SSL + "key-file"
TLS_AUTHORITY = _SSL + "ca-file"


def _host(text: str) -> str:
    if text and not _HOST.fullmatch(text):
        raise ValueError("expected a host name or an IP address, without a port")
    return text


def _reachable_host(text: str) -> str:
    if not text:
        raise ValueError("expected a host name or an IP address")
    return _host(text)


def _file(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError("expected an absolute path")
    return text


NETWORK_DEFINITIONS = (
    Definition(
        COALESCING + "max-rows",
        "coalesced_rows",
        "8192",
        count_within(1, 1 << 20),
        "An operator handles small queued batches as one of up to this many rows, because every"
        " batch has a fixed cost. 1: every batch by itself. Not in mode ACKED, which follows"
        " batches as they were sent. Ours.",
    ),
    Definition(
        COALESCING + "max-wait",
        "coalescing_wait_ms",
        "5 ms",
        duration_within(0, 1_000),
        "How long an idle operator waits for more rows before it handles a small batch. It never"
        " keeps a barrier waiting. 0: it joins only batches that are already queued. Ours.",
    ),
    Definition(
        DEBLOATING + "enabled",
        "debloats_channels",
        "true",
        true_or_false,
        "true: the channels in front of an operator hold only what it consumes within the target"
        " time, so that an aligned checkpoint completes soon even if the operator is slow. false:"
        " each channel holds up to 8 MiB. Not in mode ACKED, which has no barriers. Flink: false.",
    ),
    Definition(
        DEBLOATING + "target",
        "debloat_target_ms",
        "500 ms",
        duration_within(10, 60_000),
        "How long an operator should need to consume everything queued in its channels. A channel"
        " holds at least one batch and at most 8 MiB. Flink: 1 s.",
    ),
    Definition(
        DEBLOATING + "period",
        "debloat_period_ms",
        "200 ms",
        duration_within(1, 10_000),
        "Time between two changes of a channel's limit. The first measurement counts at once."
        " Flink's default.",
    ),
    Definition(
        DEBLOATING + "samples",
        "debloat_samples",
        "20",
        count_within(1, 1_000),
        "Over how many periods the consumption rate of an operator is averaged. Flink's default.",
    ),
    Definition(
        DEBLOATING + "threshold-percentages",
        "debloat_threshold_percent",
        "25",
        count_within(0, 100),
        "A channel keeps its limit while the new one differs by no more than this percentage."
        " Flink's default.",
    ),
    Definition(
        "jobmanager.rpc.address",
        "driver_host",
        "127.0.0.1",
        _reachable_host,
        "Address under which slots reach the driver. The default suits one machine; on a"
        " cluster, set the driver's name or address as the other machines see it.",
    ),
    Definition(
        "jobmanager.bind-host",
        "driver_bind_host",
        "",
        _host,
        "Address that the driver listens on. Not set: jobmanager.rpc.address; 0.0.0.0 means all.",
    ),
    Definition(
        "jobmanager.rpc.port",
        "driver_port",
        "0",
        count_within(0, 65_535),
        "Port that the driver listens on; 0, the default here, takes any free one. Flink: 6123.",
    ),
    Definition(
        "taskmanager.host",
        "slot_host",
        "",
        _host,
        "Address under which slots reach each other. Not set: the one from which the slot reaches"
        " the driver. A machine's own FTDASH_TASKMANAGER_HOST goes before it.",
    ),
    Definition(
        "taskmanager.bind-host",
        "slot_bind_host",
        "",
        _host,
        "Address that the data port of a slot listens on. Not set: the one that it is reached"
        " under. Flink listens on all, 0.0.0.0.",
    ),
    Definition(
        TLS_ENABLED,
        "tls_enabled",
        "false",
        true_or_false,
        "Encrypt control and data connections with TLS 1.3; both ends must have a certificate of"
        " the same authority, and the attempt's token is required as before.",
    ),
    Definition(
        TLS_CERTIFICATE,
        "tls_certificate",
        "",
        _file,
        "With TLS: PEM file with the certificate of this installation, on every machine. Not set:"
        " FTDASH_TLS_CERTIFICATE_FILE of each machine. Flink names a key store instead.",
    ),
    Definition(
        TLS_KEY,
        "tls_key",
        "",
        _file,
        "With TLS: PEM file with the private key, on every machine. Not set:"
        " FTDASH_TLS_KEY_FILE of each machine.",
    ),
    Definition(
        TLS_AUTHORITY,
        "tls_authority",
        "",
        _file,
        "With TLS: PEM file with the certificate of the authority that signs all others. Not set:"
        " FTDASH_TLS_CA_FILE of each machine.",
    ),
)
