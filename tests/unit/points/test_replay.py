"""A restore replays the quarantined records of its point that were not replayed before."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from pipelines.connectors.files.sink import Committable
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.poison import REPLAYED_PREFIX
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import Manifest, OperatorSnapshot, SubtaskSnapshot
from pipelines.flows.finding import find_flow
from pipelines.points.input import SetAside, check_replayable, set_aside
from pipelines.points.stored_output import StoredCommittables
from tests.unit.points.stored_views import EVENTS, FLOW, VIEWS, write_events
from tests.unit.runtime.points import manifest_of

LINE = '{"record": "{}"}\n'


def test_only_quarantined_records_of_the_points_lineage_wait_for_replay(tmp_path: Path) -> None:
    put(tmp_path, "part-run-1-00000002-0-0.jsonl", 2)
    put(tmp_path, "part-run-1-00000006-0-0.jsonl", 4)  # after the point that was forked
    put(tmp_path, "part-run-2-00000007-0-0.jsonl", 3)
    put(tmp_path, "part-run-2-00000008-0-0.jsonl", 5)  # after the point
    put(tmp_path, "part-run-9-00000001-0-0.jsonl", 6)
    put(tmp_path, "_superseded/run-9/part-run-1-00000003-0-0.jsonl", 7)  # a restore brings it back

    found = set_aside(point(), str(tmp_path), [EVENTS, VIEWS])

    assert found == {EVENTS: SetAside(waiting=2 + 3 + 7, replayed=0)}


def test_an_unreadable_quarantine_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine = tmp_path / EVENTS
    quarantine.mkdir()

    def refuse(path: object = ".") -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    monkeypatch.setattr(os, "scandir", refuse)

    with pytest.raises(Rejected, match=r"cannot be read now \(Permission denied\)"):
        set_aside(point(), str(tmp_path), [EVENTS])


def test_prepared_quarantine_files_count_before_and_after_their_commit(tmp_path: Path) -> None:
    prepared = put(tmp_path, ".prepared-run-2-a1-00000007-0-0.jsonl", 3)
    file = Committable(
        temporary=prepared.name, final="part-run-2-00000007-0-0.jsonl", length=1, digest=""
    )
    stored = StoredCommittables(checkpoint_id=CheckpointId(7), items=[msgspec.to_builtins(file)])
    manifest = point(OperatorSnapshot(uid=EVENTS, quarantined=[msgspec.to_builtins(stored)]))

    assert set_aside(manifest, str(tmp_path), [EVENTS])[EVENTS] == SetAside(3, 0)
    prepared.rename(prepared.with_name(file.final))
    assert set_aside(manifest, str(tmp_path), [EVENTS])[EVENTS] == SetAside(3, 0)


def test_records_that_the_point_already_replayed_do_not_wait_again(tmp_path: Path) -> None:
    old, half = "part-run-1-00000002-0-0.jsonl", "part-run-1-00000003-0-0.jsonl"
    put(tmp_path, old, 2)
    put(tmp_path, half, 5)
    put(tmp_path, "part-run-2-00000007-0-0.jsonl", 1)  # failed again
    manifest = point(
        replayed(SplitProgress(REPLAYED_PREFIX + old, offset=2, is_finished=True)),
        replayed(SplitProgress(REPLAYED_PREFIX + half, offset=3)),
    )

    assert set_aside(manifest, str(tmp_path), [EVENTS])[EVENTS] == SetAside(waiting=3, replayed=5)
    assert check(manifest, tmp_path) == {EVENTS: 3}


def test_a_second_replay_is_refused_because_nothing_is_left(tmp_path: Path) -> None:
    old = "part-run-1-00000002-0-0.jsonl"
    put(tmp_path, old, 2)
    done = SplitProgress(REPLAYED_PREFIX + old, offset=2, is_finished=True)

    assert check(point(), tmp_path) == {EVENTS: 2}
    with pytest.raises(Rejected, match=r"^Nothing is left to replay: all 2 records in quarantine"):
        check(point(replayed(done)), tmp_path)


@pytest.mark.parametrize(
    ("mode", "only", "sentence"),
    [
        ("AT_MOST_ONCE", (), "cannot be replayed with execution.checkpointing.mode AT_MOST_ONCE"),
        ("ACKED", (), "cannot be replayed with execution.checkpointing.mode ACKED"),
        ("EXACTLY_ONCE", ("views",), "no source 'views'; its sources are events"),
        ("EXACTLY_ONCE", (), "no record was in quarantine at checkpoint 7 of run run-2"),
    ],
)
def test_an_impossible_replay_is_refused_in_one_sentence(
    tmp_path: Path, mode: str, only: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(Rejected) as refused:
        check(point(), tmp_path, only=only, mode=mode)

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def check(
    manifest: Manifest,
    home: Path,
    *,
    only: tuple[str, ...] = (),
    mode: str = "EXACTLY_ONCE",
) -> dict[str, int]:
    data = write_events(home / "data")
    settings = parse_settings({"execution.checkpointing.mode": mode})
    pipeline = find_flow(FLOW).build({"data": str(data)})
    return dict(check_replayable(manifest, pipeline, settings, str(home), only))


def point(*operators: OperatorSnapshot) -> Manifest:
    """Checkpoint 7 of a run that was forked from checkpoint 5 of another."""
    subtasks = [
        SubtaskSnapshot(vertex=EVENTS, subtask=index, operators=[operator])
        for index, operator in enumerate(operators)
    ]
    return manifest_of(
        [],
        pipeline=FLOW,
        run_id=RunId("run-2"),
        checkpoint_id=CheckpointId(7),
        ancestors=[(RunId("run-1"), CheckpointId(5))],
        subtasks=subtasks,
    )


def replayed(split: SplitProgress) -> OperatorSnapshot:
    return OperatorSnapshot(
        uid=EVENTS, replayed=NamedPositions((split,), has_looked=True).to_json()
    )


def put(home: Path, name: str, lines: int) -> Path:
    file = home / EVENTS / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(LINE * lines)
    return file
