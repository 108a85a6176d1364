"""A package that is installed on no machine runs in every slot; manifests and output name it."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipelines.domain.run import ShippedCode
from pipelines.domain.status import JobStatus
from pipelines.packages.store import CodeStore
from tests.driven_run import StartedRun, started_run
from tests.flight_runs import SOONER
from tests.processes.savepoint_requests import manifest_of
from tests.shipped_packages import shop_wheel
from tests.standalone_cluster import CannotHaveCluster, Cluster, standalone_cluster

STEP_S = 150.0  # the first step includes the start of Spark, on a busy machine
TOTAL = 4_000
FLOW = """
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.stream import Environment, flow
from tests.processes.numbers import Numbers

SCHEMA = pa.schema([("number", pa.int64()), ("version", pa.string()), ("place", pa.string())])


@dataclass(frozen=True, kw_only=True)
class Parameters:
    output: Path
    hurry: Path


def signed(row):
    from shipped_shop import signature

    return {"number": row["number"], "version": signature.NUMBER, "place": __file__}


@flow
def shop(env: Environment, parameters: Parameters) -> None:
    source = Numbers(TOTAL, pause_s=0.01, hurry=str(parameters.hurry))
    numbers = env.source(source, uid="numbers")
    rows = numbers.map(signed, SCHEMA, uid="sign")
    rows.sink(ExactlyOnceFiles(parameters.output, pipeline="orders"), uid="files")
""".replace("TOTAL", str(TOTAL))

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


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_a_package_runs_in_every_slot_without_being_installed(tmp_path: Path, master: str) -> None:
    code = added(tmp_path)

    with started_run(
        tmp_path, "orders", parameters(tmp_path), master=master, settings=SOONER, code=code
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


def assert_ran(run: StartedRun, root: Path, code: ShippedCode) -> None:
    run.wait_for_more(1, STEP_S)
    written = manifest_of(Path(run.completed()[-1].path))
    (root / "hurry").touch()
    ended = run.wait_until_over(STEP_S)

    assert ended.status is JobStatus.FINISHED, run.tail()
    assert written.code == code
    rows = pq.read_table(root / "output").to_pydict()
    assert sorted(rows["number"]) == list(range(TOTAL))
    assert set(rows["version"]) == {"1.0"}
    assert all(code.file in place for place in rows["place"]), "it ran from the wheel"
    assert not any(str(CodeStore(root).place_of(code)) in place for place in rows["place"])


def added(root: Path) -> ShippedCode:
    return CodeStore(root).add(signed_wheel(root / "built", "1.0"))


def added_elsewhere(root: Path) -> Path:
    return signed_wheel(root / "elsewhere", "1.0", more="# another line")


def signed_wheel(directory: Path, version: str, more: str = "") -> Path:
    return shop_wheel(
        directory, version, FLOW + more, {"shipped_shop/signature.py": f"NUMBER = '{version}'\n"}
    )


def parameters(root: Path) -> dict[str, str]:
    return {"output": str(root / "output"), "hurry": str(root / "hurry")}
