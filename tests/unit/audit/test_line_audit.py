"""An audit of output files of JSON lines."""

from pathlib import Path

import pytest

from pipelines.audit.report import Covers
from pipelines.connectors import JSON_LINES, ExactlyOnceFiles
from tests.unit.audit.audited_run import AuditedRun

WITH_EVERY_VALUE = (1, 2, 3, 4, 6, 7)
WITH_A_NULL = (5, 6, 7)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def run(tmp_path: Path, target: Path) -> AuditedRun:
    run = AuditedRun(tmp_path, "run-1", ExactlyOnceFiles(target, pipeline="p", format=JSON_LINES))
    run.begin()
    run.write(*WITH_EVERY_VALUE)
    run.checkpoint(1)
    return run


def test_untouched_lines_are_proven(run: AuditedRun) -> None:
    assert run.proven() == ("run-1", 1, 6)
    assert run.sink_report().covers is Covers.DIGESTED


def test_a_file_with_a_null_float_is_counted_since_it_may_have_been_nan(
    run: AuditedRun,
) -> None:
    run.write(*WITH_A_NULL)
    run.checkpoint(2)

    assert run.proven() == ("run-1", 2, 9)
    assert run.sink_report().covers is Covers.COUNTED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"name 2"', b'"name 3"'),
        (b"01.001Z", b"01.002Z"),
        (b'"id":2', b'"id":9'),
        (b'"id":2', b'"key":2'),
        (b'"id":2', b'"id":"x"'),
        (b'{"id":2', b'"id":2'),
    ],
)
def test_a_changed_line_is_found(run: AuditedRun, target: Path, old: bytes, new: bytes) -> None:
    file = next(f for f in target.glob("*.jsonl") if old in f.read_bytes())
    file.write_bytes(file.read_bytes().replace(old, new, 1))

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.part) == (1, file.name)
