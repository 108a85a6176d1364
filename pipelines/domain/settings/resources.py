"""Settings of resources: storage and memory of state, channels, addresses.

`storage.roots` decides which places are allowed, the backends in `pipelines.state` keep the state,
and `runtime.networking` lets a machine's environment override some addresses and the encryption
between slots.

Source: Flink 2.3, `StateBackendOptions`, `RocksDBOptions`, `CheckpointingOptions`,
`JobManagerOptions`, `TaskManagerOptions`, `SecurityOptions`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from pipelines.domain.settings.readers import (
    bytes_within,
    count_within,
    duration_within,
    memory_of_at_least,
    one_of,
    setting,
    true_or_false,
)

OBJECT_SCHEMES = ("s3",)
CHECKPOINT_DIR = "execution.checkpointing.dir"
SAVEPOINT_DIR = "execution.checkpointing.savepoint-dir"
COALESCING = "pipeline.coalescing."
DEBLOATING = "taskmanager.network.memory.buffer-debloat."
TLS_CERTIFICATE = "security.ssl.internal.certificate-file"
TLS_KEY = "security.ssl.internal.key-file"
TLS_AUTHORITY = "security.ssl.internal.ca-file"
MAX_STATE_BYTES_LIMIT = 16 << 20
_LEAST_MEMORY_BYTES = 1 << 20
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9a-fA-F:.]{2,45}")


class StateBackendType(StrEnum):
    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


class CheckpointStorage(StrEnum):
    FILESYSTEM = "filesystem"
    JOBMANAGER = "jobmanager"


def _path(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError("expected an absolute path")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """How the subtasks of a run keep their state; every slot gets them."""

    backend: StateBackendType = setting(
        "state.backend.type",
        StateBackendType.HASHMAP,
        one_of(StateBackendType),
        "Where the state of operators is kept. hashmap: in memory, as columns; the fastest, and as"
        " large as the memory. rocksdb: on the local disk of each slot, behind a memory of bounded"
        " size.",
    )
    is_incremental: bool = setting(
        "execution.checkpointing.incremental",
        "false",
        true_or_false,
        "Whether a checkpoint uploads only what has changed since the last completed one and refers"
        " to the files of that one for the rest; its size is then what was uploaded. Both backends"
        " can. Savepoints are always whole.",
    )
    rocksdb_memory_bytes: int = setting(
        "state.backend.rocksdb.memory.fixed-per-slot",
        "256 mb",
        memory_of_at_least(_LEAST_MEMORY_BYTES),
        "Memory that the RocksDB states of one slot share: half caches blocks of the files, half"
        " holds the rows in use. Flink has no default and takes a part of its managed memory.",
    )
    rocksdb_directory: str = setting(
        "state.backend.rocksdb.localdir",
        "",
        _path,
        "Local directory for the databases of running slots. Not set: the directory for temporary"
        " files, as in Flink. Each slot removes its own at the end; the next slot removes what a"
        " killed one left.",
    )


def _place(text: str) -> str:
    """An absolute path or a URL, without a slash at the end; empty if not set."""
    place = text.removeprefix("file://") if text.startswith("file:///") else text
    starts = ("/", *(f"{scheme}://" for scheme in OBJECT_SCHEMES))
    if text and not place.startswith(starts):
        raise ValueError("expected an absolute path, file:///path or s3://bucket/prefix")
    return place.rstrip("/") or place


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Where points are kept, and how."""

    kind: CheckpointStorage = setting(
        "execution.checkpointing.storage",
        CheckpointStorage.FILESYSTEM,
        one_of(CheckpointStorage),
        "Where checkpoints are kept: filesystem (files, or an object store, see dir) or jobmanager:"
        " in the driver's memory, which takes small state only and is lost with the driver; a new"
        " driver then starts from the beginning, or from the point the run was restored from."
        " Savepoints are always files. In Flink, jobmanager is what one gets without a dir.",
    )
    checkpoint_dir: str = setting(
        CHECKPOINT_DIR,
        "",
        _place,
        "Directory, or s3://bucket/prefix, below which each run keeps its checkpoints in <run"
        " id>/chk-<id>. Not set: in the run's own directory. It must lie in a root that the"
        " installation allows (FTDASH_STORAGE_ROOTS). Credentials come from the environment.",
    )
    savepoint_dir: str = setting(
        SAVEPOINT_DIR,
        "",
        _place,
        "Directory, or s3://bucket/prefix, that savepoints are written to. Not set: the directory"
        " savepoints of the pipeline. The same roots are allowed as for dir.",
    )
    max_memory_state_bytes: int = setting(
        "execution.checkpointing.jobmanager.max-state-size",
        "5 mb",
        bytes_within(1, MAX_STATE_BYTES_LIMIT),
        "With storage jobmanager: the most that one state of one subtask may take; a checkpoint"
        " with a larger one fails by name. Flink has the same bound, 5 MB, in its code only.",
    )
    compresses_snapshots: bool = setting(
        "execution.checkpointing.snapshot-compression",
        "false",
        true_or_false,
        "true: the state files of checkpoints are compressed (LZ4): less to write, more work for"
        " the processor. Canonical savepoints are compressed always, and RocksDB compresses its"
        " files itself.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """How operators take queued batches, and how much of the processor; every slot gets them."""

    coalesced_rows: int = setting(
        "pipeline.coalescing.max-rows",
        "8192",
        count_within(1, 1 << 20),
        "An operator handles small queued batches as one of up to this many rows, because every"
        " batch has a fixed cost. 1: every batch by itself. Not in mode ACKED, which follows"
        " batches as they were sent. Ours.",
    )
    coalescing_wait_ms: int = setting(
        "pipeline.coalescing.max-wait",
        "5 ms",
        duration_within(0, 1_000),
        "How long an idle operator waits for more rows before it handles a small batch. It never"
        " keeps a barrier waiting. 0: it joins only batches that are already queued. Ours.",
    )
    longest_work_ms: int = setting(
        "pipeline.coalescing.max-work",
        "50 ms",
        duration_within(0, 60_000),
        "An operator that would work longer than this on a batch, in processor time, handles it in"
        " pieces, and looks at its mailbox in between. 0: it handles every batch as a whole. Ours.",
    )
    debloats_channels: bool = setting(
        "taskmanager.network.memory.buffer-debloat.enabled",
        "true",
        true_or_false,
        "true: the channels in front of an operator hold only what it consumes within the target"
        " time, so that an aligned checkpoint completes soon even if the operator is slow. false:"
        " each channel holds up to 8 MiB. Not in mode ACKED, which has no barriers. Flink: false.",
    )
    debloat_target_ms: int = setting(
        "taskmanager.network.memory.buffer-debloat.target",
        "100 ms",
        duration_within(10, 60_000),
        "How long an operator should need to consume everything queued in its channels. A channel"
        " holds at least one batch and at most 8 MiB. Flink: 1 s.",
    )
    debloat_period_ms: int = setting(
        "taskmanager.network.memory.buffer-debloat.period",
        "200 ms",
        duration_within(1, 10_000),
        "Time between two changes of a channel's limit. The first measurement counts at once."
        " Flink's default.",
    )
    debloat_samples: int = setting(
        "taskmanager.network.memory.buffer-debloat.samples",
        "20",
        count_within(1, 1_000),
        "Over how many periods the consumption rate of an operator is averaged. Flink's default.",
    )
    debloat_threshold_percent: int = setting(
        "taskmanager.network.memory.buffer-debloat.threshold-percentages",
        "25",
        count_within(0, 100),
        "A channel keeps its limit while the new one differs by no more than this percentage."
        " Flink's default.",
    )


AS_SENT = InputOptions(
    coalesced_rows=1, coalescing_wait_ms=0, longest_work_ms=0, debloats_channels=False
)
"""The options of mode ACKED. It fails and repeats batches as they were sent, so it joins none. No
barrier waits there behind queued records, so its channels need no bound in time."""


def _host(text: str) -> str:
    if text and not _HOST.fullmatch(text):
        raise ValueError("expected a host name or an IP address, without a port")
    return text


def _reachable_host(text: str) -> str:
    if not text:
        raise ValueError("expected a host name or an IP address")
    return _host(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """The addresses on which driver and slots listen, and under which they are reached."""

    driver_host: str = setting(
        "jobmanager.rpc.address",
        "127.0.0.1",
        _reachable_host,
        "Address under which slots reach the driver. The default suits one machine; on a cluster,"
        " set the driver's name or address as the other machines see it.",
    )
    driver_bind_host: str = setting(
        "jobmanager.bind-host",
        "",
        _host,
        "Address that the driver listens on. Not set: jobmanager.rpc.address; 0.0.0.0 means all.",
    )
    driver_port: int = setting(
        "jobmanager.rpc.port",
        "0",
        count_within(0, 65_535),
        "Port that the driver listens on; 0, the default here, takes any free one. Flink: 6123.",
    )
    slot_host: str = setting(
        "taskmanager.host",
        "",
        _host,
        "Address under which slots reach each other. Not set: the one from which the slot reaches"
        " the driver. A machine's own FTDASH_TASKMANAGER_HOST goes before it.",
    )
    slot_bind_host: str = setting(
        "taskmanager.bind-host",
        "",
        _host,
        "Address that the data port of a slot listens on. Not set: the one that it is reached"
        " under. Flink listens on all, 0.0.0.0.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How driver and slots encrypt their connections."""

    enabled: bool = setting(
        "security.ssl.internal.enabled",
        "false",
        true_or_false,
        "Encrypt control and data connections with TLS 1.3; both ends must have a certificate of"
        " the same authority, and the attempt's token is required as before.",
    )
    certificate: str = setting(
        TLS_CERTIFICATE,
        "",
        _path,
        "With TLS: PEM file with the certificate of this installation, on every machine. Not set:"
        " FTDASH_TLS_CERTIFICATE_FILE of each machine. Flink names a key store instead.",
    )
    key: str = setting(
        TLS_KEY,
        "",
        _path,
        "With TLS: PEM file with the private key, on every machine. Not set: FTDASH_TLS_KEY_FILE of"
        " each machine.",
    )
    authority: str = setting(
        TLS_AUTHORITY,
        "",
        _path,
        "With TLS: PEM file with the certificate of the authority that signs all others. Not set:"
        " FTDASH_TLS_CA_FILE of each machine.",
    )
