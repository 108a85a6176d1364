"""The specification of a run, where its files are, and how its processes communicate.

The control plane writes `run.json` before it starts a driver with `python -m pipelines.spark.driver
RUN_DIR`, and hands it the address of Redis; nothing else is passed between the two. The file names
the values of the pipeline's parameters and the author's package that the run executes, which every
manifest names too. So a point says which code wrote it.

The run's own directory (journal, lease, requests) is always on a shared file system. About once a
second, the driver shows there that it is alive and makes progress. Snapshots lie at a path or a
URL: checkpoints by run, savepoints by pipeline.

Source: Flink's layout, `<execution.checkpointing.dir>/<job id>/chk-<id>`, and its options
`jobmanager.rpc.address`, `taskmanager.host`, their bind hosts, `security.ssl.internal`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.settings import CheckpointStorage, StorageOptions
from pipelines.domain.status import ClaimMode

DIGITS_SHOWN = 12


class ShippedCode(msgspec.Struct, frozen=True, kw_only=True):
    """One wheel. The same digest means the same code."""

    package: str
    version: str
    file: str  # the name of the wheel
    sha256: str  # of the wheel, hexadecimal

    @property
    def described(self) -> str:
        return f"{self.package} {self.version} (sha256 {self.sha256[:DIGITS_SHOWN]})"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, whose values are text. A `default` of None means that it is required."""

    name: str
    default: str | None
    help: str
    choices: tuple[str, ...] = ()  # empty: any text that the pipeline can read
    is_secret: bool = False  # its text names the place that keeps the secret


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_id: RunId
    pipeline: str  # name of a flow in pipelines.flows
    parallelism: int
    master: str  # Spark master; "local[N]" with N = parallelism by default
    parameters: dict[str, str]  # of the flow, validated by it
    settings: dict[str, str]  # Flink's keys, validated by domain.settings
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    restore_from: str | None = None  # directory of a checkpoint or savepoint
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False  # leave behind what no operator takes
    first_checkpoint_id: CheckpointId = CheckpointId(1)
    replayed_sources: list[Uid] = []  # whose quarantine is read again, from `restore_from` on
    renamed_uids: dict[Uid, Uid] = {}  # of operators in `restore_from`, to those of the pipeline
    accepted_gaps: list[str] = []  # texts of gaps after `restore_from`, see `domain.gaps`
    installation: str = ""  # which started the run; the same after each of its restarts
    started_by: str = ""  # the person who asked for the run; empty: no person did
    follows: RunId | None = None  # the run of that pipeline before this one
    code: ShippedCode | None = None  # that holds the pipeline; None: an installed package does
    puts_back: bool = False  # it reads nothing, and only undoes the start of the run before it

    def on_slots(self, count: int) -> "RunSpec":
        """Returns the spec with room for `count` slots, if the master is the default one.

        An operator may have a higher parallelism than the run.
        """
        if self.master != local_master(self.parallelism):
            return self
        return msgspec.structs.replace(self, master=local_master(count))


def local_master(slot_count: int) -> str:
    """Spark on this machine, with a thread for each slot."""
    return f"local[{slot_count}]"


class RunDirectory:
    """Names the run's own files, on a file system that the control plane and the driver share.

    Layout below `<root>/<pipeline>/`:

    runs/<run id>/{run.json, journal.jsonl, lease.lock, lease.json, driver.log, beginning.json}
    runs/<run id>/{targets.json, alive.json, lease.guard}
    runs/<run id>/log/{<number>.jsonl, ...}
    runs/<run id>/{journal-<where it begins>.jsonl, ...}, once the journal is long
    runs/<run id>/{requests/<request id>.json, attempts/<n>}

    Snapshots lie beside them unless a setting says otherwise, see `SnapshotPlaces`:

    runs/<run id>/checkpoints/chk-<id>/{manifest.json, *.arrow}
    savepoints/savepoint-<run id>-<id>/{manifest.json, *.parquet}
    quarantine/<uid of a source>/part-<run id>-<id>-*.jsonl
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def of(cls, root: Path, pipeline: str, run_id: RunId) -> "RunDirectory":
        return cls(root / pipeline / "runs" / run_id)

    @property
    def run_id(self) -> RunId:
        return RunId(self.path.name)

    @property
    def jobs_root(self) -> Path:
        """The directory of all pipelines of the installation."""
        return self.path.parents[2]

    @property
    def spec_file(self) -> Path:
        return self.path / "run.json"

    @property
    def journal_file(self) -> Path:
        """The first segment, which names the whole: see `bus.journal_segments`."""
        return self.path / "journal.jsonl"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def quarantine(self) -> Path:
        """The directory of the quarantines of all sources, shared by all runs."""
        return self.path.parent.parent / "quarantine"

    @property
    def lease_lock(self) -> Path:
        return self.path / "lease.lock"

    @property
    def lease_file(self) -> Path:
        return self.path / "lease.json"

    @property
    def lease_guard(self) -> Path:
        """Locked while a lease is taken away from a driver."""
        return self.path / "lease.guard"

    @property
    def sign_file(self) -> Path:
        """The newest sign of life of its driver."""
        return self.path / "alive.json"

    @property
    def beginning_file(self) -> Path:
        """The file with what the sources were given when the run began."""
        return self.path / "beginning.json"

    @property
    def targets_file(self) -> Path:
        """The run's claims to its targets."""
        return self.path / "targets.json"

    @property
    def driver_log(self) -> Path:
        """The output of the driver's process and of Spark."""
        return self.path / "driver.log"

    @property
    def log(self) -> Path:
        """The directory of the log of driver, slots and the author's code: see `bus.run_log`."""
        return self.path / "log"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files, the same on every machine; the key itself never leaves its machine."""

    certificate: str
    key: str
    authority: str


class SlotNetworking(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses and files that a slot needs before it can connect to any process."""

    host: str = ""  # announced to the peers; empty: the address from which it reaches the driver
    bind_host: str = ""  # to listen on; empty: the announced one
    tls: TlsFiles | None = None


class DriverNetworking(msgspec.Struct, frozen=True, kw_only=True):
    host: str  # by which slots reach the driver
    bind_host: str  # to listen on
    port: int  # 0: any free one
    slots: SlotNetworking


MEMORY = "memory"
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")


def scheme_of(location: str) -> str:
    """`s3` of `s3://bucket/key`; empty for a path."""
    match = _SCHEME.match(location)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class SnapshotPlaces:
    """`checkpoints` belongs to the run alone. All runs share `savepoints` and `quarantine`, a path
    for the records that no operator gets."""

    run_id: RunId
    checkpoints: str
    savepoints: str
    quarantine: str = ""

    @classmethod
    def of(cls, directory: RunDirectory, storage: StorageOptions) -> "SnapshotPlaces":
        run_id, home = directory.run_id, directory.path.parent.parent
        if storage.kind is CheckpointStorage.JOBMANAGER:
            checkpoints = f"{MEMORY}://{run_id}"
        elif storage.checkpoint_dir:
            checkpoints = f"{storage.checkpoint_dir}/{run_id}"
        else:
            checkpoints = str(directory.path / "checkpoints")
        savepoints = storage.savepoint_dir or str(home / "savepoints")
        return cls(run_id, checkpoints, savepoints, str(directory.quarantine))

    def checkpoint(self, checkpoint_id: CheckpointId) -> str:
        return f"{self.checkpoints}/chk-{checkpoint_id}"

    def savepoint(self, checkpoint_id: CheckpointId) -> str:
        return f"{self.savepoints}/savepoint-{self.run_id}-{checkpoint_id}"

    def checkpoint_id_of(self, name: str) -> CheckpointId | None:
        """The id in the name of a directory of this run; None if it is not a point of the run."""
        match = re.fullmatch(rf"(?:chk|savepoint-{re.escape(self.run_id)})-([0-9]{{1,18}})", name)
        return CheckpointId(int(match[1])) if match else None


LONG_STEP_MAX_MS = 600_000.0
"""The longest standstill in a long step. Before the first turn of its loop, between two attempts
and at the end, a driver does work that takes minutes, such as reading a large point. It moves as it
gets from one file to the next."""


WAITED = "FTDASH_DRIVER_WAITED_MS"
"""The environment variable that says how long the supervision waited on purpose before it started
the driver, because earlier drivers had died without a new checkpoint."""


class DriverSign(msgspec.Struct, frozen=True, kw_only=True):
    """Contains no time: a reader measures by its own clock how long nothing has moved."""

    epoch: int  # of the driver's lease
    sequence: int  # grows with every sign: the process runs and its disk takes writes
    moves: int  # grows with every move of its control loop
    is_long_step: bool = False  # the loop does work that takes minutes
