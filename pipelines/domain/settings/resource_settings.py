"""The rows of the settings table about resources: storage and memory of state, channels, addresses.

Part of `table.DEFINITIONS`. `storage.roots` decides which places are allowed, the backends in
`pipelines.state` keep the state, and `runtime.networking` lets a machine's environment override
some addresses and the encryption between slots.
"""

import re

from pipelines.domain.run import OBJECT_SCHEMES, scheme_of
from pipelines.domain.settings import CheckpointStorage, StateBackendType
from pipelines.domain.settings.readers import (
    Definition,
    bytes_within,
    count_within,
    duration_within,
    memory_of_at_least,
    one_of,
    true_or_false,
)

_CHECKPOINTING = "execution.checkpointing."
CHECKPOINT_DIR = _CHECKPOINTING + "dir"
SAVEPOINT_DIR = _CHECKPOINTING + "savepoint-dir"
MAX_STATE_BYTES_LIMIT = 16 << 20


def _place(text: str) -> str:
    """An absolute path or a URL, without a slash at the end; empty if not set."""
    place = text.removeprefix("file://") if text.startswith("file:///") else text
    is_place = place.startswith("/") or (scheme_of(place) in OBJECT_SCHEMES and "://" in place)
    if text and not is_place:
        raise ValueError("expected an absolute path, file:///path or s3://bucket/prefix")
    return place.rstrip("/") or place


STORAGE_DEFINITIONS = (
    Definition(
        "execution.checkpointing.snapshot-compression",
        "compresses_snapshots",
        "false",
        true_or_false,
        "true: the state files of checkpoints are compressed (LZ4): less to write, more work"
        " for the processor. Canonical savepoints are compressed always, and RocksDB compresses its"
        " files itself.",
    ),
    Definition(
        "execution.ledger.digest",
        "digests_output",
        "true",
        true_or_false,
        "true: the ledger keeps a digest of what each sink is given, so that an audit of the output"
        " finds every changed value. false: it only counts the rows, which costs nothing; see"
        " docs/how-to/audit.md. Flink has no ledger.",
    ),
    Definition(
        _CHECKPOINTING + "storage",
        "checkpoint_storage",
        CheckpointStorage.FILESYSTEM,
        one_of(CheckpointStorage),
        "Where checkpoints are kept: filesystem (files, or an object store, see dir) or jobmanager:"
        " in the driver's memory, which takes small state only and is lost with the driver; a new"
        " driver then starts from the beginning, or from the point the run was restored from."
        " Savepoints are always files. In Flink, jobmanager is what one gets without a dir.",
    ),
    Definition(
        CHECKPOINT_DIR,
        "checkpoint_dir",
        "",
        _place,
        "Directory, or s3://bucket/prefix, below which each run keeps its checkpoints in"
        " <run id>/chk-<id>. Not set: in the run's own directory. It must lie in a root that the"
        " installation allows (FTDASH_STORAGE_ROOTS). Credentials come from the environment.",
    ),
    Definition(
        SAVEPOINT_DIR,
        "savepoint_dir",
        "",
        _place,
        "Directory, or s3://bucket/prefix, that savepoints are written to. Not set: the"
        " directory savepoints of the pipeline. The same roots are allowed as for dir.",
    ),
    Definition(
        _CHECKPOINTING + "jobmanager.max-state-size",
        "max_memory_state_bytes",
        "5 mb",
        bytes_within(1, MAX_STATE_BYTES_LIMIT),
        "With storage jobmanager: the most that one state of one subtask may take; a checkpoint"
        " with a larger one fails by name. Flink has the same bound, 5 MB, in its code only.",
    ),
)


_ROCKSDB = "state.backend.rocksdb."
_LEAST_MEMORY_BYTES = 1 << 20


def _directory(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError("expected an absolute path")
    return text


STATE_DEFINITIONS = (
    Definition(
        "state.backend.type",
        "state_backend",
        StateBackendType.HASHMAP,
        one_of(StateBackendType),
        "Where the state of operators is kept. hashmap: in memory, as columns; the fastest, and as"
        " large as the memory. rocksdb: on the local disk of each slot, behind a memory of bounded"
        " size.",
    ),
    Definition(
        "execution.checkpointing.incremental",
        "incremental_checkpoints",
        "false",
        true_or_false,
        "Whether a checkpoint uploads only what has changed since the last completed one and refers"
        " to the files of that one for the rest; its size is then what was uploaded. Both backends"
        " can. Savepoints are always whole.",
    ),
    Definition(
        _ROCKSDB + "memory.fixed-per-slot",
        "rocksdb_memory_bytes",
        "256 mb",
        memory_of_at_least(_LEAST_MEMORY_BYTES),
        "Memory that the RocksDB states of one slot share: half caches blocks of the files, half"
        " holds the rows in use. Flink has no default and takes a part of its managed memory.",
    ),
    Definition(
        _ROCKSDB + "localdir",
        "rocksdb_directory",
        "",
        _directory,
        "Local directory for the databases of running slots. Not set: the directory for temporary"
        " files, as in Flink. Each slot removes its own at the end; the next slot removes what a"
        " killed one left.",
    ),
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
