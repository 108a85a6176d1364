"""This release restores savepoints that older releases stored, and continues exactly."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from pipelines.domain.snapshots import FORMAT_VERSION
from pipelines.domain.status import JobStatus
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.processes.host import hosted_run
from tests.processes.numbers import committed, expected

pytestmark = pytest.mark.slow

STORED = sorted((Path(__file__).parents[1] / "stored_savepoints").glob("format-*/*"))
TOTAL = 1_200
STEP_S = 60.0


@pytest.mark.parametrize("stored", STORED, ids=lambda path: f"{path.parent.name} {path.name}")
def test_a_run_continues_where_a_stored_savepoint_was_taken(stored: Path, tmp_path: Path) -> None:
    before = pd.read_json(stored / "output.json")
    savepoint = tmp_path / "numbers" / "savepoints" / "savepoint-of-then"
    shutil.copytree(stored / "savepoint", savepoint)
    manifest = FileSystemCheckpointStore([str(savepoint)]).manifest(str(savepoint))

    with hosted_run(
        tmp_path,
        {"total": str(TOTAL)},
        parallelism=3,
        restore_from=str(savepoint),
        spec_fields={"first_checkpoint_id": manifest.checkpoint_id + 1},
    ) as run:
        ended = run.wait_until_over(STEP_S)

    after = committed(tmp_path / "output")
    both = pd.concat([before, after]).sort_values(["window", "key"]).reset_index(drop=True)
    assert ended.status is JobStatus.FINISHED, ended.reason
    pd.testing.assert_frame_equal(both, expected(TOTAL), check_dtype=False)
    assert min(len(before), len(after)) > 0


def test_a_savepoint_of_every_format_is_stored() -> None:
    formats = {int(path.parent.name.removeprefix("format-")) for path in STORED}

    assert formats == set(range(1, FORMAT_VERSION + 1))
