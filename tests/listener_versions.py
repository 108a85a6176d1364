"""Tries the listener on real queries with each supported pyspark, classic and through Connect.

    python -m tests.listener_versions [VERSION ...]

Makes an environment for each version, with the listener's wheel. Runs and stops a query in a
classic session, and one in a session of a Spark Connect server. The dashboard has to understand
every report of the listener: the start, each batch once and in order, and the end. Takes some
minutes and 400 MB a version, so CI does not run it. Spark Connect 3.5 comes from Maven Central.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
from packaging.version import Version

from ftdash.embedded.installation import free_port
from ftdash.watching.progress import Kind, understood
from ftdash.watching.query_status import QueryState, QueryStatus
from tests.java_programs import JavaProgram
from tests.listener_dashboard import Dashboard
from tests.polling import wait_until
from tests.project_wheels import built_wheel

VERSIONS = ("3.5.7", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
MODES = ("classic", "connect")
LISTENER = Path(__file__).parents[1] / "pipelines" / "spark" / "listener"
CLIENT = (
    *("pandas<3", "pyarrow", "zstandard"),
    *("grpcio", "grpcio-status", "googleapis-common-protos"),
)
"""The imports of pyspark's client for Connect."""

OLD_CLIENT = ("numpy<2", "setuptools<81", "pyarrow<21")  # for pyspark 3.5
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
WITHIN_S = 180.0
BATCHES = 3
QUERY = """
import sys, time
from ftdash_listener import watch
from pyspark.sql import SparkSession
remote, url, batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "2")
spark = (builder.remote(remote) if remote else builder.master("local[2]")).getOrCreate()
watch(spark, url, "ftd_x")
rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
counted = rows.groupBy((rows.value % 7).alias("key")).count()
writer = counted.writeStream.outputMode("update").format("noop").queryName("orders")
query = writer.trigger(processingTime="500 milliseconds").start()
while not query.lastProgress or int(query.lastProgress["batchId"]) < batches:
    time.sleep(0.1)
query.stop()
print("stopped", flush=True)
sys.stdin.readline()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    wrong = 0
    for version in parser.parse_args().versions:
        with tempfile.TemporaryDirectory(prefix="listener-") as directory:
            python = environment(Path(directory), version)
            for mode in MODES:
                problem = tried(Path(directory), python, version, mode)
                wrong += bool(problem)
                print(f"{version} {mode}: {problem or 'all events understood'}", flush=True)
    return 1 if wrong else 0


def environment(directory: Path, version: str) -> Path:
    """Makes a virtual environment and returns its Python."""
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    wheel = built_wheel(LISTENER, directory)
    more = OLD_CLIENT if Version(version) < Version("4") else ()
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"pyspark=={version}", *CLIENT, *more, str(wheel)], check=True)
    return python


def tried(directory: Path, python: Path, version: str, mode: str) -> str:
    """Returns the problem as text, or an empty text if there is none."""
    outside = {name: text for name, text in os.environ.items() if not name.startswith("PY")}
    shared = {**outside, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    try:
        with Dashboard().serving() as dashboard:
            if mode == "classic":
                query(directory, python, "", dashboard, shared)
            else:
                with server(directory, python, version, shared) as remote:
                    query(directory, python, remote, dashboard, shared)
            return problem_with(dashboard)
    except AssertionError as error:
        return str(error)


def query(
    directory: Path, python: Path, remote: str, dashboard: Dashboard, shared: dict[str, str]
) -> None:
    """Runs a query, stops it, and waits until the listener has reported everything."""
    log = directory / "query.log"
    with log.open("w") as said:
        process = subprocess.Popen(
            [str(python), "-c", QUERY, remote, dashboard.url, str(BATCHES)],
            env=shared,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
        )

    def has_ended() -> bool:
        assert process.poll() is None, f"the query's program ended: {log.read_text()[-3000:]}"
        return "terminated" in {event["kind"] for event in dashboard.events}

    try:
        wait_until(
            has_ended,
            within_s=WITHIN_S,
            otherwise=lambda: f"no end was reported: {log.read_text()[-3000:]}",
        )
    finally:
        end(process)


@contextmanager
def server(directory: Path, python: Path, version: str, shared: dict[str, str]) -> Iterator[str]:
    """Yields the address of a Spark Connect server of that version."""
    port, log = free_port(), directory / "server.log"
    found = [str(python), "-c", "import pyspark; print(pyspark.__path__[0])"]
    home = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
    words = [f"{home}/bin/spark-submit", "--master", "local[2]", "--class", SERVER]
    words += ["--conf", f"spark.connect.grpc.binding.port={port}"]
    words += ["--conf", "spark.connect.grpc.binding.address=127.0.0.1"]
    if Version(version) < Version("4"):
        words += ["--jars", str(connect_jar(version))]
    with log.open("w") as said:
        process = subprocess.Popen(
            [*words, "spark-internal"],
            env={**shared, "SPARK_HOME": home},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: "Spark Connect server started" in log.read_text(),
            within_s=WITHIN_S,
            otherwise=lambda: f"no server: {log.read_text()[-3000:]}",
        )
        yield f"sc://127.0.0.1:{port}"
    finally:
        end(process)


def connect_jar(version: str) -> Path:
    """Returns the jar, which contains its dependencies. Raises ProgramMissing."""
    name = "spark-connect_2.12"
    described = f"""
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>{name}</artifactId><version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    """
    jars = JavaProgram("SparkConnect", version, described).jars()
    return next(each for each in jars if each.name.startswith(name))


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kills the process and its Java."""
    family = psutil.Process(process.pid).children(recursive=True)
    for each in (process, *family):
        each.kill()
    process.wait()


def problem_with(dashboard: Dashboard) -> str:
    told, problems = understood(dashboard.events, datetime.now(UTC))
    if problems:
        return f"not understood: {problems[0]}"
    status = QueryStatus()
    for each in told:
        status = status.after(each)
    batches = [each.batch.batch_id for each in told if each.kind is Kind.PROGRESS and each.batch]
    if batches != list(range(len(batches))) or len(batches) < BATCHES:
        return f"not each batch once and in order: {batches}"
    if not any(each.kind is Kind.STARTED for each in told):
        return f"no start: {json.dumps(dashboard.events)[:300]}"
    if (state := status.state(datetime.now(UTC))) is not QueryState.FINISHED:
        return f"the query is {state} in the end"
    return ""


if __name__ == "__main__":
    sys.exit(main())
