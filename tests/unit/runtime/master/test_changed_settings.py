"""A setting changed while a run continues counts from the next event on, not for work under way."""

from pathlib import Path

from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import Event, RecordQuarantined
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.origins import RecordOrigin
from pipelines.domain.poison import PoisonPolicy
from pipelines.domain.run import RunDirectory, SnapshotPlaces
from pipelines.domain.settings.failures import PoisonOptions
from pipelines.domain.settings.parsing import parse_settings
from pipelines.protocol.repeated_failures import (
    Deterministic,
    NobodysFault,
    OperatorError,
    Quarantine,
)
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import Failed, Inject
from pipelines.runtime.master.attempt.watchers import PoisonDesk
from tests.unit.runtime.hosted_checkpoints import INTERVAL_MS, TIMEOUT_MS, Master

RUN = RunId("run-1")
C = "execution.checkpointing."
TOLERANT = {C + "tolerable-failed-checkpoints": "9"}


def test_a_changed_tolerance_applies_from_the_next_failure(tmp_path: Path) -> None:
    master = Master(tmp_path)
    master.trigger()

    change(master, {C + "tolerable-failed-checkpoints": "1"})
    master.decline(1)
    after_one = list(master.too_many)
    master.trigger()
    master.decline(2)

    assert after_one == []
    assert len(master.too_many) == 1


def test_a_changed_timeout_applies_from_the_next_checkpoint(tmp_path: Path) -> None:
    shorter_ms = TIMEOUT_MS // 5
    master = Master(tmp_path, TOLERANT)
    master.trigger()

    change(master, {**TOLERANT, C + "timeout": f"{shorter_ms} ms"})
    pass_time(master, TIMEOUT_MS - 1)
    of_the_first = failed(master)
    pass_time(master, 1)
    pass_time(master, INTERVAL_MS)  # the second one has started
    pass_time(master, shorter_ms)

    assert of_the_first == []
    assert failed(master)[:2] == [1, 2]


def test_a_changed_pause_applies_from_the_end_of_the_last_checkpoint(tmp_path: Path) -> None:
    pause_ms = 10 * INTERVAL_MS
    master = Master(tmp_path)
    master.complete_one()

    change(master, {C + "min-pause": f"{pause_ms} ms"})
    pass_time(master, pause_ms - 1)
    too_early = injected(master)
    pass_time(master, 1)

    assert too_early == [1]
    assert injected(master) == [1, 2]


def test_a_changed_quarantine_applies_from_the_next_failure_and_keeps_records(
    tmp_path: Path,
) -> None:
    fail, quarantine = PoisonOptions(), PoisonOptions(policy=PoisonPolicy.QUARANTINE)
    places = SnapshotPlaces(RUN, "checkpoints", "savepoints", "quarantine")
    directory, emitted = RunDirectory.of(tmp_path, "numbers", RUN), list[Event]()
    directory.path.mkdir(parents=True)
    with JournalWriter(directory, RUN, SystemClock(), lambda *_: None) as journal:
        desk = PoisonDesk(fail, places, emitted.append, journal)
        before = desk.on_failure(*at_record(7))
        desk.on_settings(quarantine)
        after = desk.on_failure(*at_record(7))
        desk.on_settings(fail)
        again = desk.on_failure(*at_record(8))

    assert (type(before), type(after), type(again)) == (NobodysFault, Quarantine, NobodysFault)
    assert [type(event) for event in emitted] == [RecordQuarantined]
    assert [each.offset for each in desk.isolation.poison] == [7]


def at_record(offset: int) -> tuple[Failed, Deterministic]:
    """Returns a failure at this record and the verdict that it is deterministic."""
    origin = RecordOrigin(
        source=Uid("numbers"), subtask=0, split="a", first_offset=offset, last_offset=offset
    )
    error = OperatorError(
        operator=Uid("rate"),
        error_type="ZeroDivisionError",
        message="by zero",
        origin=origin,
        is_of_the_world=False,
        is_of_record=True,
    )
    failed = Failed(
        vertex=Uid("numbers"), subtask=0, cause="it failed", detail="", is_fatal=False, error=error
    )
    return failed, Deterministic(origin, 3, 90_000.0)


def change(master: Master, settings: dict[str, str]) -> None:
    master.host.on_settings(parse_settings(settings))


def pass_time(master: Master, milliseconds: int) -> None:
    master.clock.now_ms += milliseconds
    master.host.on_time()


def injected(master: Master) -> list[int]:
    return [order.checkpoint_id for order in master.attempt.of(Inject)]


def failed(master: Master) -> list[int | None]:
    return [event.checkpoint_id for event in master.failed]
