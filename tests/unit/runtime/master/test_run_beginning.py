"""The files and positions that a run begins with are found once, for all drivers of the run."""

from pathlib import Path

import pytest

from pipelines.bus.lease import LeaseLost
from pipelines.connectors.files.input_files import input_files
from pipelines.connectors.positions import Beginning
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import Uid
from pipelines.domain.run import RunDirectory
from pipelines.runtime.master.run_context import RunBeginning
from tests.unit.runtime.growing_log import GrowingLog

CLICKS, ORDERS = Uid("clicks"), Uid("orders")


class LogOfToday(GrowingLog):
    begins_once = True


def test_a_later_driver_of_the_run_lists_the_same_files_as_the_first(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "b.csv").touch()
    with RunBeginning(tmp_path / "beginning.json").listing():
        assert input_files(inbox, ".csv") == (inbox / "b.csv",)
    (inbox / "a.csv").touch()

    later = RunBeginning(tmp_path / "beginning.json")
    with later.listing():
        assert input_files(inbox, ".csv") == (inbox / "b.csv",)

    assert Beginning.unpacked(later.packed).directories == {f"{inbox}/*.csv": ["b.csv"]}


def test_a_log_is_inspected_only_once_for_all_attempts_and_drivers(tmp_path: Path) -> None:
    clicks = LogOfToday({"a": [(0, 1, 1)]}, starts_at_the_end=True)
    beginning = RunBeginning(tmp_path / "beginning.json")
    beginning.look({CLICKS: clicks, ORDERS: GrowingLog({"o": []})})
    before = beginning.packed
    clicks.logs["a"].append((1, 2, 2))
    beginning.look({CLICKS: clicks})
    later = RunBeginning(tmp_path / "beginning.json")
    later.look({CLICKS: clicks})

    assert before == beginning.packed == later.packed
    splits = Beginning.unpacked(before).splits
    assert [(split.name, split.offset) for split in splits[CLICKS]] == [("a", 1)]
    assert ORDERS not in splits


def test_a_log_that_did_not_answer_is_inspected_again(tmp_path: Path) -> None:
    clicks = LogOfToday({"a": []}, is_away=True)
    beginning = RunBeginning(tmp_path / "beginning.json")
    with pytest.raises(Retryable):
        beginning.look({CLICKS: clicks})

    clicks.is_away = False
    beginning.look({CLICKS: clicks})

    assert CLICKS in Beginning.unpacked(beginning.packed).splits


def test_a_driver_that_has_lost_the_run_leaves_the_beginning_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "beginning.json"
    late = RunBeginning(file, lost)
    clicks = LogOfToday({"a": [(0, 1, 1)]})
    RunBeginning(file).look({CLICKS: clicks})
    before = file.read_bytes()

    with pytest.raises(LeaseLost):
        late.look({CLICKS: LogOfToday({"other": [(0, 1, 1)]})})

    assert file.read_bytes() == before


def lost() -> None:
    raise LeaseLost(RunDirectory(Path("run")), None)


def test_a_beginning_file_that_cannot_be_parsed_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "beginning.json").write_text("[")

    with pytest.raises(Rejected, match=r"beginning\.json does not say what the sources began"):
        RunBeginning(tmp_path / "beginning.json")
