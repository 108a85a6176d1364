"""Before a start, the preflight reports who holds the existing output."""

from pathlib import Path

import pytest

from pipelines.connectors.contract import HoldsTarget
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import RunId, Uid
from pipelines.points.preflight import takeovers
from pipelines.stream import Pipeline
from tests.processes import numbers
from tests.takeovers import held

FILES = Uid("files")


def test_a_holding_run_of_another_installation_is_named_with_its_fate(tmp_path: Path) -> None:
    pipeline = writing_to(tmp_path)
    held(pipeline.sinks[FILES], RunId("0003-abc"), installation="elsewhere")

    assert list(takeovers(pipeline, "here")) == [
        f"The output of 'files', the directory {tmp_path}, is held by run 0003-abc of installation"
        " elsewhere, started by ada: the new run takes it over, and run 0003-abc ends as FAILED if"
        " it still runs."
    ]


def test_free_output_or_output_of_this_installation_is_not_mentioned(tmp_path: Path) -> None:
    pipeline = writing_to(tmp_path / "out")
    free = list(takeovers(pipeline, "here"))
    held(pipeline.sinks[FILES], RunId("0003-abc"), installation="here")

    assert free == list(takeovers(pipeline, "here")) == []


def test_looking_up_the_holder_creates_nothing(tmp_path: Path) -> None:
    assert list(takeovers(writing_to(tmp_path / "out"), "here")) == []

    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_target_is_reported_but_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = writing_to(tmp_path)
    sink = pipeline.sinks[FILES]
    assert isinstance(sink, HoldsTarget)

    def away(sink: object) -> None:
        raise Retryable("the disk is away")

    monkeypatch.setattr(type(sink), "holder", away)

    assert list(takeovers(pipeline, "here")) == [
        "Who holds the output of 'files' cannot be told now: the disk is away."
    ]


def writing_to(directory: Path) -> Pipeline:
    return numbers.FLOW.build({"output": str(directory)})
