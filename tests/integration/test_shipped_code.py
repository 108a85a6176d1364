"""A package installed on no machine runs in every slot; manifests and output name it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.status import JobStatus
from pipelines.packages.store import CodeStore
from pipelines.packages.wheel import FILE
from tests.driven_run import started_run
from tests.flight_runs import SOONER
from tests.sent_code import STEP_S, added, added_elsewhere, assert_ran, parameters
from tests.standalone_cluster import CannotHaveCluster, Cluster, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    place = tmp_path / "cluster"
    place.mkdir()
    try:
        with standalone_cluster(place) as started:
            yield started
    except CannotHaveCluster as refusal:
        pytest.skip(f"No cluster of network namespaces on this machine: {refusal}")


def test_a_package_runs_in_every_slot_without_being_installed(tmp_path: Path) -> None:
    """`test_shop` runs a package on local-cluster."""
    code = added(tmp_path)

    with started_run(
        tmp_path, "orders", parameters(tmp_path), master="local[2]", settings=SOONER, code=code
    ) as run:
        assert_ran(run, tmp_path, code)


def test_a_package_runs_on_a_standalone_cluster_without_being_installed(
    tmp_path: Path, cluster: Cluster
) -> None:
    code = added(tmp_path)

    with started_run(
        tmp_path,
        "orders",
        parameters(tmp_path),
        master=cluster.url,
        settings=SOONER | {"jobmanager.rpc.address": cluster.master.address},
        place=cluster.master.command,
        environment=cluster.environment,
        code=code,
    ) as run:
        assert_ran(run, tmp_path, code, engine=FILE)


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
