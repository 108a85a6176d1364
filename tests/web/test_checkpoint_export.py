"""The history as a file: complete, filtered, and streamed while it is read."""

import csv
import json

import pytest

from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointFailed
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind
from tests.web.fetching import fetch
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.usefixtures("site")
CSV = "/pipelines/flights/checkpoints/history.csv"
JSON = "/pipelines/flights/checkpoints/history.json"


def test_both_files_hold_the_whole_history_newest_first() -> None:
    eventful()

    status, headers, parts = fetch(CSV)
    lines = list(csv.DictReader(b"".join(parts).decode().splitlines()))
    values = json.loads(b"".join(fetch(JSON)[2]))

    assert status == 200
    assert headers["Content-Type"] == "text/csv; charset=utf-8"
    disposition = 'attachment; filename="flights-run-1-checkpoints.csv"'
    assert headers["Content-Disposition"] == disposition
    assert "no-store" in headers["Cache-Control"]
    assert [line["checkpoint_id"] for line in lines] == ["4", "3", "2", "1"]
    assert [value["checkpoint_id"] for value in values] == [4, 3, 2, 1]
    assert lines[3]["end_to_end_ms"] == "80.0"
    assert lines[3]["alignment_ms"] == "61.0"
    assert lines[3]["counters"] == '{"join.unmatched_left":3}'
    assert lines[3]["trigger_at"].endswith("+00:00")
    assert lines[0]["reason_name"] == "CHECKPOINT_EXPIRED"
    assert lines[0]["completed_at"] == ""
    assert list(lines[0]) == list(values[0])


def test_a_filter_of_the_page_holds_for_the_file() -> None:
    eventful()

    assert ids(f"{JSON}?kind=SAVEPOINT") == [2]
    assert ids(f"{JSON}?from_id=2&to_id=3") == [3, 2]
    assert ids(f"{JSON}?reason=CHECKPOINT_EXPIRED") == [4]
    assert ids(f"{JSON}?from_id=99") == []
    assert b"".join(fetch(f"{CSV}?from_id=99")[2]).count(b"\n") == 1


def test_an_invalid_filter_gives_no_file() -> None:
    eventful()

    status, headers, parts = fetch(f"{CSV}?from_id=3&to_id=2")

    assert status == 400
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert parts == [b"to_id: Nothing lies from 3 to 2; swap them."]


def test_the_file_is_streamed_while_the_history_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftdash.checkpoints.queries.statistics.CHUNK", 1)
    eventful()

    assert len(fetch(CSV)[2]) == 5
    assert [part[:1] for part in fetch(JSON)[2]] == [b"[", b",", b",", b",", b"\n"]


def test_a_spreadsheet_does_not_evaluate_the_text_of_an_exception() -> None:
    eventful(message='=HYPERLINK("http://evil")')

    (line,) = csv.DictReader(b"".join(fetch(f"{CSV}?status=FAILED")[2]).decode().splitlines())

    assert line["message"] == '\'=HYPERLINK("http://evil")'


def test_an_unknown_pipeline_or_run_gives_no_file() -> None:
    assert fetch(CSV)[0] == 404
    eventful()
    assert fetch(f"{CSV}?run=nothing")[0] == 404


def eventful(message: str = "Too late.") -> None:
    story = Story(new_run()).started().completed().completed(CheckpointKind.SAVEPOINT).completed()
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.triggered().tell(
        CheckpointFailed(checkpoint_id=CheckpointId(4), reason=reason, message=message)
    )
    Projector().run_once()


def ids(address: str) -> list[int]:
    return [value["checkpoint_id"] for value in json.loads(b"".join(fetch(address)[2]))]
