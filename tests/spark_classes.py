"""Lets the JVMs of Spark that a suite starts map their classes from one archive.

A JVM that starts Spark reads and verifies about ten thousand classes, which takes half of the
processor time of a start. Java can keep the classes in an archive and map it (class data sharing,
JEP 350). A JVM that finds no archive, or one that does not fit, starts as it would without.

    python -m tests.spark_classes FILE

starts Spark once and writes the archive of the classes that it loaded.
"""

import os
import subprocess
import sys
from pathlib import Path

from pipelines.disk.files import replace_atomically

OPTIONS, OF_DAEMONS = "SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"
"""Options of the JVM that Spark runs in, and of masters and workers. They do not apply to the JVM
that only builds their command."""

OF_EXECUTORS = "spark.executor.extraJavaOptions"
QUIET = "-Xlog:cds*=off"


def mapped_from(archive: Path) -> dict[str, str]:
    """Returns variables for a process that starts Spark.

    Spark reads the options of executors from a file.
    """
    options = f"-XX:SharedArchiveFile={archive} {QUIET}"
    configuration = archive.with_suffix(".conf")
    configuration.mkdir(exist_ok=True)
    text = f"{OF_EXECUTORS} {options}\n"
    replace_atomically(configuration / "spark-defaults.conf", text.encode())
    return {OPTIONS: options, OF_DAEMONS: options, "SPARK_CONF_DIR": str(configuration)}


def begin_archive(archive: Path) -> subprocess.Popen[bytes]:
    """Starts a process that writes the archive, and that the caller ends.

    The archive appears whole.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark_classes", str(archive)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def write_archive(archive: Path) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    partial = archive.with_suffix(".partial")
    os.environ[OPTIONS] = f"-XX:ArchiveClassesAtExit={partial} {QUIET}"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    session.sparkContext.parallelize(range(4), 2).barrier().mapPartitions(list).collect()
    session.range(4).groupBy("id").count().collect()
    session.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        raise RuntimeError("Spark has started without a gateway")
    gateway.shutdown()
    gateway.proc.stdin.close()  # then the JVM ends, and writes the archive
    gateway.proc.wait()
    partial.rename(archive)


if __name__ == "__main__":
    write_archive(Path(sys.argv[1]))
