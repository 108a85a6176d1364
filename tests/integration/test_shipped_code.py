"""A package installed on no machine runs in every slot; manifests and output name it."""

from pathlib import Path

import pytest

from pipelines.domain.status import JobStatus
from pipelines.packages.store import CodeStore
from tests.driven_run import started_run
from tests.flight_runs import SOONER
from tests.sent_code import STEP_S, added, added_elsewhere, assert_ran, parameters

pytestmark = [pytest.mark.slow, pytest.mark.spark]

MASTER = "local-cluster[2,1,1024]"
"""Each executor is a process of its own; `tests/processes/test_upgrades.py` has `local[2]`."""


def test_a_package_runs_in_every_slot_without_being_installed(tmp_path: Path) -> None:
    """`test_standalone_cluster` runs it on a cluster, where the engine is not installed either."""
    code = added(tmp_path)

    with started_run(
        tmp_path, "orders", parameters(tmp_path), master=MASTER, settings=SOONER, code=code
    ) as run:
        assert_ran(run, tmp_path, code)


def test_a_package_that_was_altered_in_the_store_ends_the_run_before_it_begins(
    tmp_path: Path,
) -> None:
    code = added(tmp_path)
    file = CodeStore(tmp_path).file_of(code)
    file.write_bytes(added_elsewhere(tmp_path).read_bytes())

    with started_run(tmp_path, "orders", parameters(tmp_path), code=code) as run:
        ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FAILED
    assert "is not the package of this run: its sha256 is" in ended.reason
    assert not (tmp_path / "output").exists()
