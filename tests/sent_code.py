"""A package whose output names the files that it and the engine ran from, and checks of its run."""

from pathlib import Path

import pyarrow.parquet as pq

from pipelines.domain.run import ShippedCode
from pipelines.domain.status import JobStatus
from pipelines.packages.store import CodeStore
from tests.driven_run import StartedRun
from tests.processes.savepoint_requests import manifest_of
from tests.shipped_packages import shop_wheel

STEP_S = 150.0  # the first step includes the start of Spark, on a busy machine
TOTAL = 4_000
FLOW = """
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

import pipelines
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.stream import Environment, flow
from tests.processes.numbers import Numbers

SCHEMA = pa.schema(
    [("number", pa.int64()), *((name, pa.string()) for name in ("version", "place", "engine"))]
)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    output: Path
    hurry: Path
    pause: timedelta = timedelta(milliseconds=10)


def signed(row):
    from shipped_shop import signature

    places = {"place": __file__, "engine": pipelines.__file__}
    return {"number": row["number"], "version": signature.NUMBER, **places}


@flow
def shop(env: Environment, parameters: Parameters) -> None:
    pause_s = parameters.pause.total_seconds()
    source = Numbers(TOTAL, pause_s=pause_s, hurry=str(parameters.hurry))
    numbers = env.source(source, uid="numbers")
    signed_numbers = numbers.map(signed, SCHEMA, uid="sign")
    rows = signed_numbers.key_by("number").deduplicate(uid="once")
    rows.sink(ExactlyOnceFiles(parameters.output, pipeline="orders"), uid="files")
""".replace("TOTAL", str(TOTAL))


def assert_ran(run: StartedRun, root: Path, code: ShippedCode, *, engine: str = "") -> None:
    """Checks the run. `engine` is the file that the engine's modules come from in every slot."""
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
    assert all(f"{engine}/" in place for place in rows["engine"]), set(rows["engine"])


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
