"""The preflight: its verdict on a whole point, and on each kind of problem."""

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.run import ShippedCode
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest, OperatorSnapshot, renamed
from pipelines.flows.finding import VARIABLE, find_flow
from pipelines.packages.store import CodeStore, stored_code
from pipelines.points.preflight import RestoreQuestion, preflight
from pipelines.points.stored_output import StoredCommittables
from pipelines.points.verdict import Check, Measured, Outcome, Verdict
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.shipped_packages import shop_wheel
from tests.takeovers import held
from tests.unit.points.stored_views import (
    EVENTS,
    FLOW,
    MAX_PARALLELISM,
    RECORDS_READ,
    VIEWS,
    savepoint_of_views,
    write_events,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_events(tmp_path / "data")


def test_an_undamaged_point_of_the_same_pipeline_can_be_restored(
    tmp_path: Path, data: Path
) -> None:
    verdict = asked(savepoint_of_views(tmp_path, data), data)

    assert verdict.is_possible
    assert set(outcomes(verdict).values()) == {Outcome.FINE}
    assert (verdict.matched, verdict.new, verdict.dropped) == ((EVENTS, VIEWS), (), ())
    assert (verdict.run_id, verdict.checkpoint_id, verdict.kind) == ("run-1", 7, "SAVEPOINT")
    assert verdict.file_count == 2
    assert verdict.file_bytes > 0


def test_the_preflight_changes_no_file(tmp_path: Path, data: Path) -> None:
    point = savepoint_of_views(tmp_path, data)
    before = contents(tmp_path)

    asked(point, data)

    assert contents(tmp_path) == before


def test_a_missing_operator_is_named_and_its_state_may_be_dropped(
    tmp_path: Path, data: Path
) -> None:
    point = with_operator(tmp_path, data, OperatorSnapshot(uid=Uid("former"), positions=[]))

    refused = asked(point, data)
    allowed = asked(point, data, allow_non_restored_state=True)

    assert not refused.is_possible
    assert "'former'" in refused.refusals[0]
    assert allowed.is_possible
    assert allowed.dropped == ("former",)
    assert allowed.is_lossy
    assert "Left behind, as allowed: 'former', 0 keys or rows in 0 bytes." in texts(allowed)


def test_a_renamed_operator_is_guessed_and_can_be_mapped_by_hand(
    tmp_path: Path, data: Path
) -> None:
    """The point looks as if `views` had been called `counts` when it was taken."""
    former = {VIEWS: Uid("counts")}
    store = FileSystemCheckpointStore([str(tmp_path)])
    taken = renamed(store.manifest(str(savepoint_of_views(tmp_path, data))), former)
    point = tmp_path / "savepoint-run-1-8"
    shutil.copytree(tmp_path / "savepoint-run-1-7", point)
    (point / "manifest.json").unlink()
    store.publish(str(point), taken)

    refused = asked(point, data)
    left = asked(point, data, allow_non_restored_state=True)
    mapped = asked(point, data, new_names={Uid("counts"): VIEWS})
    wrong = asked(point, data, new_names={Uid("counts"): Uid("sums")})

    assert not refused.is_possible
    assert refused.likely_names == {"counts": VIEWS}
    assert any("'counts' looks like 'views': same state, same" in each for each in texts(refused))
    assert left.is_possible
    assert any("'counts', 20 keys or rows in " in each for each in texts(left))
    assert (mapped.is_possible, mapped.is_lossy, mapped.likely_names) == (True, False, {})
    assert mapped.matched == (EVENTS, VIEWS)
    assert "The state of 'counts' in the point becomes that of 'views'." in texts(mapped)
    assert any("no operator 'sums'" in each for each in wrong.refusals)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"max_parallelism": 64}, "64"), ({"parallelism": 200}, "200"), ({"parallelism": 0}, "0")],
)
def test_a_parallelism_that_does_not_fit_the_key_groups_is_refused(
    tmp_path: Path, data: Path, changes: dict[str, int], named: str
) -> None:
    verdict = asked(savepoint_of_views(tmp_path, data), data, **changes)

    assert outcomes(verdict)[Check.COMPATIBILITY] is Outcome.REFUSED
    assert named in verdict.refusals[0]


def test_a_state_keyed_by_another_column_is_refused_by_name(tmp_path: Path, data: Path) -> None:
    point = savepoint_of_views(tmp_path, data)

    verdict = asked(point, data, parameters={"data": str(data), "key": "user_id"})

    assert "'app_id'" in verdict.refusals[0]
    assert "'totals'" in verdict.refusals[0]


def test_a_restore_notes_that_it_takes_output_over_from_another_installation(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "numbers=tests.processes.numbers:FLOW")
    parameters = {"output": str(tmp_path / "out")}
    sink = find_flow("numbers").build(parameters).sinks[Uid("files")]
    held(sink, RunId("0003-abc"), installation="elsewhere")
    restore = {"flow": "numbers", "parameters": parameters, "installation": "here"}

    point = savepoint_of_views(tmp_path, data)

    verdict = asked(point, data, **restore)
    at_home = asked(point, data, **{**restore, "installation": "elsewhere"})

    assert outcomes(verdict)[Check.OUTPUT] is Outcome.NOTE
    assert any("takes it over, and run 0003-abc ends as FAILED" in each for each in texts(verdict))
    assert Check.OUTPUT not in outcomes(at_home)
    assert Check.SOURCES in outcomes(at_home), "it was looked at as a whole"


def test_reports_the_guarantee_and_refuses_a_stronger_required_one(
    tmp_path: Path, data: Path
) -> None:
    point = savepoint_of_views(tmp_path, data)
    at_least = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}

    fine = asked(point, data)
    refused = asked(point, data, settings={**at_least, "ftdash.guarantee.required": "EXACTLY_ONCE"})

    assert any(text.startswith("From end to end exactly-once, because") for text in texts(fine))
    assert outcomes(refused)[Check.GUARANTEE] is Outcome.REFUSED
    assert "guarantees no more than 'at-least-once'" in refused.refusals[0]


@pytest.mark.parametrize("damage", ["missing", "torn", "one bit"])
def test_every_file_is_read_and_a_damaged_one_is_named(
    tmp_path: Path, data: Path, damage: str
) -> None:
    point = savepoint_of_views(tmp_path, data)
    file = sorted(point.glob("*.parquet"))[1]
    harm(file, damage)

    verdict = asked(point, data)

    assert outcomes(verdict)[Check.FILES] is Outcome.REFUSED
    assert file.name in verdict.refusals[0]


@pytest.mark.parametrize(
    ("damage", "is_seen"), [("missing", True), ("torn", True), ("one bit", False)]
)
def test_finds_missing_or_truncated_files_without_reading_them(
    tmp_path: Path, data: Path, damage: str, is_seen: bool
) -> None:
    point = savepoint_of_views(tmp_path, data)
    file = sorted(point.glob("*.parquet"))[1]
    harm(file, damage)

    verdict = asked(point, data, reads_files=False)

    assert verdict.is_possible is not is_seen
    assert not is_seen or file.name in verdict.refusals[0]


@pytest.mark.parametrize("damage", ["missing", "torn", "one bit"])
def test_a_damaged_manifest_is_the_only_finding(tmp_path: Path, data: Path, damage: str) -> None:
    point = savepoint_of_views(tmp_path, data)
    harm(point / "manifest.json", damage)

    verdict = asked(point, data)

    [finding] = verdict.findings
    assert finding.check is Check.MANIFEST
    assert "manifest.json" in finding.text


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path, data: Path) -> None:
    point = savepoint_of_views(tmp_path, data, format_version=FORMAT_VERSION + 1)

    [refusal] = asked(point, data).refusals

    assert f"format {FORMAT_VERSION + 1}" in refusal


def test_a_source_that_lost_a_file_is_refused_naming_the_file(tmp_path: Path, data: Path) -> None:
    point = savepoint_of_views(tmp_path, data)
    (data / "0.csv").unlink()

    verdict = asked(point, data)

    assert outcomes(verdict)[Check.SOURCES] is Outcome.REFUSED
    assert "'0.csv'" in verdict.refusals[0]


@pytest.mark.parametrize("positions", ["soon", {"backlog": [[1, -1]], "frontier": 2, "stride": 1}])
def test_positions_that_make_no_sense_are_refused(
    tmp_path: Path, data: Path, positions: object
) -> None:
    odd = OperatorSnapshot(uid=EVENTS, positions=positions)

    verdict = asked(with_operator(tmp_path, data, odd), data)

    assert "'events' make no sense" in verdict.refusals[0]


@pytest.mark.parametrize(
    ("wrote", "outcome", "said"),
    [
        (
            "1.0",
            Outcome.FINE,
            r"^The point was written by the same code: shipped-shop 1.0 \(",
        ),
        (
            "1.1",
            Outcome.NOTE,
            r"^The code has changed: shipped-shop 1.1 \(.*\) wrote the point",
        ),
        (
            None,
            Outcome.NOTE,
            "^It is not known if the code has changed: an installed package",
        ),
    ],
)
def test_the_preflight_reports_whether_the_code_has_changed(
    tmp_path: Path, data: Path, wrote: str | None, outcome: Outcome, said: str
) -> None:
    store = CodeStore(tmp_path / "jobs")
    codes = {each: store.add(shop_wheel(tmp_path, each)) for each in ("1.0", "1.1")}
    point = written_by(codes.get(wrote or ""), savepoint_of_views(tmp_path, data))

    verdict = asked(point, data, flow="orders", code=stored_code(codes["1.0"], tmp_path / "jobs"))

    found = [each for each in verdict.findings if each.check is Check.CODE]
    assert [each.outcome for each in found] == [outcome]
    assert re.search(said, found[0].text)


def test_a_problem_of_the_pipeline_itself_is_reported(tmp_path: Path, data: Path) -> None:
    point = savepoint_of_views(tmp_path, data)

    verdict = asked(point, data, parameters={"data": str(tmp_path / "nowhere")})

    assert outcomes(verdict)[Check.PIPELINE] is Outcome.REFUSED
    assert "nowhere" in verdict.refusals[0]


def test_pending_commits_are_counted_per_sink(tmp_path: Path, data: Path) -> None:
    stored = [StoredCommittables(checkpoint_id=7, items=["a", "b"])]  # type: ignore[arg-type]
    held = OperatorSnapshot(uid=Uid("nowhere"), committables=msgspec.to_builtins(stored))

    verdict = asked(with_operator(tmp_path, data, held), data)

    assert verdict.pending_commits == {"nowhere": 2}
    assert outcomes(verdict)[Check.PENDING_COMMITS] is Outcome.NOTE


def test_a_point_refused_before_is_checked_again_with_a_note(tmp_path: Path, data: Path) -> None:
    verdict = asked(savepoint_of_views(tmp_path, data), data, refused_before="Output is lost.")

    assert verdict.is_possible
    (note,) = (finding for finding in verdict.findings if finding.outcome is Outcome.NOTE)
    assert (note.check, note.text) == (
        Check.MANIFEST,
        "It was refused before. Output is lost.",
    )


def test_the_replay_and_its_duration_are_estimated_from_measurements(
    tmp_path: Path, data: Path
) -> None:
    point = savepoint_of_views(tmp_path, data)
    measured = Measured(RECORDS_READ + 500, (900.0, 1_000.0, 5_000.0), records_per_s=1_000.0)

    verdict = asked(point, data, measured=measured)

    assert verdict.records_to_replay == 500
    assert verdict.estimated_ms == 1_000.0 + 500.0
    assert "About 1.5 s until that is caught up, judging by 3 measured recoveries." in texts(
        verdict
    )


@pytest.mark.parametrize(
    "measured",
    [Measured(), Measured(source_records=500), Measured(500, (900.0,), records_per_s=0.0)],
)
def test_estimates_nothing_without_measurements(
    tmp_path: Path, data: Path, measured: Measured
) -> None:
    verdict = asked(savepoint_of_views(tmp_path, data), data, measured=measured)

    assert verdict.estimated_ms is None
    assert Check.TIME not in outcomes(verdict)


@pytest.mark.parametrize("way_out", ["..", "link", "absolute"])
def test_a_path_that_leads_out_of_the_storage_is_refused(
    tmp_path: Path, data: Path, way_out: str
) -> None:
    outside = savepoint_of_views(tmp_path / "outside", data)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    paths = {
        "..": inside / ".." / "outside" / outside.name,
        "link": inside / "link",
        "absolute": outside,
    }

    with pytest.raises(Rejected, match="outside the configured storage"):
        preflight(question(paths[way_out], data), FileSystemCheckpointStore([str(inside)]))


def asked(point: Path, data: Path, **changes: Any) -> Verdict:
    roots = [str(point.parent)]
    return preflight(question(point, data, **changes), FileSystemCheckpointStore(roots))


def question(point: Path, data: Path, **changes: Any) -> RestoreQuestion:
    values: dict[str, Any] = {
        "path": str(point),
        "flow": FLOW,
        "parameters": {"data": str(data)},
        "parallelism": 3,
        "max_parallelism": MAX_PARALLELISM,
    }
    return RestoreQuestion(**{**values, **changes})


def with_operator(root: Path, data: Path, added: OperatorSnapshot) -> Path:
    """Returns a point whose first subtask has one more operator."""
    point = savepoint_of_views(root, data)
    store = FileSystemCheckpointStore([str(root)])
    manifest: Manifest = store.manifest(str(point))
    first = manifest.subtasks[0]
    grown = msgspec.structs.replace(first, operators=[*first.operators, added])
    changed = msgspec.structs.replace(manifest, subtasks=[grown, *manifest.subtasks[1:]])
    (point / "manifest.json").unlink()
    store.publish(str(point), changed)
    return point


def written_by(code: ShippedCode | None, point: Path) -> Path:
    store = FileSystemCheckpointStore([str(point)])
    changed = msgspec.structs.replace(store.manifest(str(point)), code=code)
    (point / "manifest.json").unlink()
    store.publish(str(point), changed)
    return point


def harm(file: Path, damage: str) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    match damage:
        case "missing":
            file.unlink()
        case "torn":
            file.write_bytes(file.read_bytes()[:-7])
        case _:
            file.write_bytes(content)


def outcomes(verdict: Verdict) -> dict[Check, Outcome]:
    """Returns the gravest outcome of each check."""
    gravity = list(Outcome)
    found: dict[Check, Outcome] = {}
    for finding in verdict.findings:
        known = found.get(finding.check, finding.outcome)
        found[finding.check] = max(known, finding.outcome, key=gravity.index)
    return found


def texts(verdict: Verdict) -> list[str]:
    return [finding.text for finding in verdict.findings]


def contents(directory: Path) -> dict[Path, tuple[int, bytes]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
