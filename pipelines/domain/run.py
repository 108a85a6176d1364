"""What one run of a pipeline is told at its start, and where its files are.

The control plane writes `run.json` before it starts a driver with
`python -m pipelines.spark.driver RUN_DIR`; nothing else is passed between the two.

Where the processes of a run listen, how others reach them, and how they encrypt.

Source: Flink's `jobmanager.rpc.address`, `taskmanager.host`, their bind hosts, and
`security.ssl.internal`.
"""

from pathlib import Path

import msgspec

from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.status import ClaimMode


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
    installation: str = ""  # which started the run; the same after each of its restarts
    started_by: str = ""  # the person who asked for the run; empty: no person did
    follows: RunId | None = None  # the run of that pipeline before this one


class RunDirectory:
    """The run's own files, named in one place; always on a file system that control plane and
    driver share. Layout below `<root>/<pipeline>/`:

    runs/<run id>/{run.json, journal.jsonl, lease.lock, lease.json, driver.log, beginning.json}
    runs/<run id>/{targets.json, alive.json, lease.guard}
    runs/<run id>/{journal-<where it begins>.jsonl, ...}, once the journal is long
    runs/<run id>/{requests/<request id>.json, attempts/<n>}

    Snapshots lie beside them unless a setting says otherwise, see `domain.places`:

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
        """What the sources were given when the run began."""
        return self.path / "beginning.json"

    @property
    def targets_file(self) -> Path:
        """The run's claims to its targets."""
        return self.path / "targets.json"

    @property
    def driver_log(self) -> Path:
        return self.path / "driver.log"


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of PEM files, the same on every machine; the key itself never leaves its machine."""

    certificate: str
    key: str
    authority: str


class SlotNetworking(msgspec.Struct, frozen=True, kw_only=True):
    """What every slot needs to know before it can connect to any process."""

    host: str = ""  # announced to the peers; empty: the address from which it reaches the driver
    bind_host: str = ""  # to listen on; empty: the announced one
    tls: TlsFiles | None = None


class DriverNetworking(msgspec.Struct, frozen=True, kw_only=True):
    host: str  # by which slots reach the driver
    bind_host: str  # to listen on
    port: int  # 0: any free one
    slots: SlotNetworking
