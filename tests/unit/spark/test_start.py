"""A run whose Spark does not start ends with a sentence that says what to do."""

from pathlib import Path
from threading import Event

import pytest
from pyspark.errors import PySparkRuntimeError

from pipelines.domain.errors import Rejected, Retryable
from pipelines.runtime.master.run_context import StartGivenUp
from pipelines.spark.stage import check_configured, started

NAMES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_yarn_without_a_configuration_is_refused_by_the_name_of_the_variable() -> None:
    with pytest.raises(Rejected, match=r"HADOOP_CONF_DIR is not set. Set it to the directory that"):
        check_configured("yarn")


def test_a_directory_without_yarn_site_xml_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    with pytest.raises(Rejected, match=rf"no yarn-site.xml in {tmp_path} \(HADOOP_CONF_DIR\)"):
        check_configured("yarn")


@pytest.mark.parametrize("name", NAMES)
def test_either_variable_names_the_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "yarn-site.xml").touch()
    monkeypatch.setenv(name, str(tmp_path))

    assert is_refused("yarn") is False


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "spark://host:7077"])
def test_other_masters_need_no_hadoop_configuration(master: str) -> None:
    assert is_refused(master) is False


def test_the_wait_ends_if_yarn_does_not_start_the_application() -> None:
    over = Event()
    try:
        with pytest.raises(Rejected, match=r"within 0.01 s \(slot.request.timeout\)") as refused:
            started(over.wait, "yarn", 0.01)
    finally:
        over.set()

    assert isinstance(refused.value.__cause__, Retryable), "a run in progress is tried again later"


def test_a_cancelled_run_stops_waiting_for_yarn() -> None:
    over = Event()
    try:
        with pytest.raises(StartGivenUp):
            started(over.wait, "yarn", 60, lambda: True)
    finally:
        over.set()


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077"])
def test_a_failed_start_gives_the_error_of_spark_in_one_line(master: str) -> None:
    def fail() -> None:
        raise PySparkRuntimeError("Connection refused\n\tat org.apache.spark.SparkContext")

    with pytest.raises(Rejected) as refused:
        started(fail, master, 60)

    assert str(refused.value) == f"Spark does not start on {master}: Connection refused"
    assert isinstance(refused.value.__cause__, Retryable)


def test_the_result_of_the_start_is_returned() -> None:
    assert started(lambda: 1, "yarn", 60) == started(lambda: 1, "local[2]", 60) == 1


def is_refused(master: str) -> bool:
    try:
        check_configured(master)
    except Rejected:
        return True
    return False
