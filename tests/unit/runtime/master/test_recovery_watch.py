"""The reported phases of a recovery: which, when, and with which duration."""

from dataclasses import dataclass, field

from pipelines.domain.events import Event, RecoveryPhaseReached
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import RecoveryPhase
from pipelines.protocol.restart import STEPS
from pipelines.runtime.master.attempt.watchers import RecoveryWatch
from tests.unit.runtime.fakes import ManualClock

STEP_MS = 10.0
AFTER_DECIDE = STEPS[2:]


def test_every_phase_is_reported_once_in_order_with_its_duration() -> None:
    recovery = Recovery()

    recovery.fail(source_records=100)
    recovery.restart(source_records=60)
    recovery.read(61)
    recovery.read(99)
    recovery.reach(RecoveryPhase.FIRST_CHECKPOINT)
    recovery.read(100)
    recovery.read(200)

    assert recovery.reported == [
        *((step, STEP_MS) for step in STEPS),
        (RecoveryPhase.FIRST_RECORD, STEP_MS),
        (RecoveryPhase.FIRST_CHECKPOINT, 3 * STEP_MS),
        (RecoveryPhase.CAUGHT_UP, 4 * STEP_MS),
    ]


def test_the_decision_names_its_point_and_the_records_to_replay() -> None:
    recovery = Recovery()

    recovery.fail(source_records=100)
    recovery.restart(source_records=60)

    decided = recovery.events[1]
    assert (decided.restored_checkpoint_id, decided.restored_path) == (7, "/points/chk-7")
    assert decided.records_to_replay == 40


def test_a_run_that_never_failed_reports_no_recovery() -> None:
    recovery = Recovery()

    recovery.restart(source_records=0)
    recovery.read(5)
    recovery.reach(RecoveryPhase.FIRST_CHECKPOINT)

    assert recovery.events == []


def test_no_record_counts_as_read_before_all_subtasks_run_again() -> None:
    recovery = Recovery()

    recovery.fail(source_records=100)
    recovery.read(100)

    assert [phase for phase, _ in recovery.reported] == [RecoveryPhase.DETECT]


def test_the_restored_position_is_not_yet_a_first_record() -> None:
    recovery = Recovery()

    recovery.fail(source_records=100)
    recovery.restart(source_records=60)
    recovery.read(60)

    assert [phase for phase, _ in recovery.reported] == list(STEPS)


def test_a_second_failure_restarts_the_phases_but_not_the_catch_up_target() -> None:
    recovery = Recovery()
    recovery.fail(source_records=100)
    recovery.restart(source_records=60)
    recovery.read(70)
    first = len(recovery.events)

    recovery.fail(source_records=70)
    recovery.restart(source_records=60)
    recovery.read(80)
    recovery.read(100)

    assert [phase for phase, _ in recovery.reported[first:]] == [
        *STEPS,
        RecoveryPhase.FIRST_RECORD,
        RecoveryPhase.CAUGHT_UP,
    ]
    assert recovery.events[first + 1].records_to_replay == 40


def test_a_deliberate_wait_of_the_supervision_is_backoff_and_not_detection() -> None:
    recovery = Recovery()
    heard_ms = recovery.clock.now_ms
    recovery.clock.now_ms += 30_000 + STEP_MS

    recovery.watch.on_failure(heard_ms, 100, waited_ms=30_000)
    recovery.restart(source_records=60)

    spent = dict(recovery.reported)
    assert spent[RecoveryPhase.DETECT] == STEP_MS
    assert spent[RecoveryPhase.BACKOFF] == 30_000 + STEP_MS


def test_a_wait_never_exceeds_the_silence_that_contains_it() -> None:
    """A person may have set the supervision's clock meanwhile."""
    recovery = Recovery()
    heard_ms = recovery.clock.now_ms
    recovery.clock.now_ms += STEP_MS

    recovery.watch.on_failure(heard_ms, 100, waited_ms=30_000)

    assert recovery.reported == [(RecoveryPhase.DETECT, 0.0)]


@dataclass(slots=True)
class Recovery:
    """A watch whose clock moves by one step whenever something happens."""

    clock: ManualClock = field(default_factory=ManualClock)
    events: list[RecoveryPhaseReached] = field(default_factory=list)
    watch: RecoveryWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = RecoveryWatch(self.clock, self._emit)

    @property
    def reported(self) -> list[tuple[RecoveryPhase, float]]:
        return [(event.phase, event.duration_ms) for event in self.events]

    def fail(self, source_records: int) -> None:
        last_sign_of_life_ms = self.clock.now_ms
        self.clock.now_ms += STEP_MS
        self.watch.on_failure(last_sign_of_life_ms, source_records)

    def restart(self, source_records: int) -> None:
        self.clock.now_ms += STEP_MS
        self.watch.on_decided(CheckpointId(7), "/points/chk-7", source_records)
        for step in AFTER_DECIDE:
            self.reach(step)

    def read(self, source_records: int) -> None:
        self.clock.now_ms += STEP_MS
        self.watch.on_source_records(source_records)

    def reach(self, phase: RecoveryPhase) -> None:
        if phase is RecoveryPhase.BACKOFF:
            self.watch.on_wait()
        self.clock.now_ms += STEP_MS
        self.watch.on_waited()
        self.watch.reached(phase)

    def _emit(self, event: Event) -> None:
        if isinstance(event, RecoveryPhaseReached):
            self.events.append(event)
