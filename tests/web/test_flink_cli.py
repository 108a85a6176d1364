"""The unmodified command line of Flink 2.3 against this dashboard, command by command."""

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.java_programs import ProgramMissing
from tests.polling import wait_until
from tests.web.flink_tools import FLINK, MAIN, CommandLine, FlinkDashboard, flink_dashboard

pytestmark = pytest.mark.slow

LINE = re.compile(r"([0-9a-f]{32}) : (\S+) \((\w+)\)")
STORED = re.compile(r"(?:Path:|stored in) (/\S+?)\.?\n")
TRIGGER = re.compile(r"triggerId: ([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Cluster:
    dashboard: FlinkDashboard
    flink: CommandLine
    jobs: dict[str, str]  # the ids of running jobs, by name

    def read(self, address: str) -> Any:
        asked = urllib.request.Request(
            f"http://{self.dashboard.address}/{address}",
            headers={"Authorization": f"Bearer {self.dashboard.token}"},
        )
        with urllib.request.urlopen(asked) as answer:
            return json.load(answer)

    def state(self, name: str) -> str:
        return str(self.read(f"jobs/{self.jobs[name]}")["state"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        FLINK.command(MAIN)
    except ProgramMissing as why:
        pytest.skip(str(why))
    with flink_dashboard(tmp_path_factory.mktemp("home")) as dashboard:
        flink = CommandLine(tmp_path_factory.mktemp("conf"), dashboard)
        yield Cluster(dashboard, flink, running(flink))


def test_jobs_are_listed_by_their_state(cluster: Cluster) -> None:
    assert {"flights", "full-disk"} < set(cluster.jobs)
    assert "ended" not in cluster.jobs

    scheduled = done(cluster.flink, "list", "-s")
    assert "No scheduled jobs." in scheduled
    assert LINE.findall(scheduled) == []
    everything = {name: state for _, name, state in LINE.findall(done(cluster.flink, "list", "-a"))}
    assert (everything["flights"], everything["ended"]) == ("RUNNING", "CANCELED")


def test_a_savepoint_is_taken_and_disposed_of(cluster: Cluster) -> None:
    job = cluster.jobs["flights"]
    (path,) = STORED.findall(done(cluster.flink, "savepoint", job))
    assert Path(path).is_dir()
    wait_until(lambda: newest(cluster, job, "completed") > newest(cluster, job, "savepoint"))

    assert "disposed" in done(cluster.flink, "savepoint", "-d", path)
    assert not Path(path).exists()


def test_a_savepoint_has_the_requested_format(cluster: Cluster) -> None:
    job = cluster.jobs["flights"]

    text = done(cluster.flink, "savepoint", "-type", "native", job)

    (path,) = STORED.findall(text)
    latest = cluster.read(f"jobs/{job}/checkpoints")["latest"]["savepoint"]
    assert (latest["external_path"], latest["savepointFormat"]) == (path, "NATIVE")


def test_the_client_does_not_wait_for_a_detached_savepoint(cluster: Cluster) -> None:
    job = cluster.jobs["flights"]

    (trigger,) = TRIGGER.findall(done(cluster.flink, "savepoint", "-detached", job))

    assert Path(outcome(cluster, job, trigger)["location"]).is_dir()


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [
        ("flights", ["/elsewhere"], "leave the directory away"),
        ("full-disk", [], "No space is left on the device"),
    ],
)
def test_the_client_says_why_a_savepoint_failed(
    cluster: Cluster, name: str, words: list[str], why: str
) -> None:
    status, text = cluster.flink.run("savepoint", cluster.jobs[name], *words)

    assert status == 1
    assert why in text


@pytest.mark.parametrize("words", [[], ["-full"]])
def test_a_checkpoint_is_taken(cluster: Cluster, words: list[str]) -> None:
    text = done(cluster.flink, "checkpoint", *words, cluster.jobs["flights"])

    assert re.search(r"Checkpoint.* completed", text)


def test_a_job_is_drained_and_stopped_with_a_savepoint(cluster: Cluster) -> None:
    (path,) = STORED.findall(done(cluster.flink, "stop", "--drain", cluster.jobs["to-drain"]))

    assert Path(path).is_dir()
    assert cluster.state("to-drain") == "FINISHED"


def test_the_client_does_not_wait_for_a_detached_stop(cluster: Cluster) -> None:
    job = cluster.jobs["to-stop"]

    (trigger,) = TRIGGER.findall(done(cluster.flink, "stop", "-detached", job))

    assert Path(outcome(cluster, job, trigger)["location"]).is_dir()
    assert cluster.state("to-stop") == "FINISHED"


def test_a_job_is_cancelled(cluster: Cluster) -> None:
    job = cluster.jobs["to-cancel"]

    assert f"Cancelled job {job}" in done(cluster.flink, "cancel", job)
    wait_until(lambda: cluster.state("to-cancel") == "CANCELED")  # the command has not waited


def test_a_job_is_cancelled_with_a_savepoint(cluster: Cluster) -> None:
    (path,) = STORED.findall(done(cluster.flink, "cancel", "-s", cluster.jobs["to-save"]))

    assert Path(path).is_dir()
    assert cluster.state("to-save") == "CANCELED"


def test_a_client_with_a_wrong_token_gets_no_jobs(cluster: Cluster) -> None:
    status, text = cluster.flink.run("list", token="wrong")

    assert status == 1
    assert "is not valid" in text
    assert LINE.findall(text) == []


def done(flink: CommandLine, action: str, *words: str) -> str:
    """Runs the command, which has to succeed, and returns its output."""
    status, text = flink.run(action, *words)
    assert status == 0, text
    return text


def running(flink: CommandLine) -> dict[str, str]:
    listed = LINE.findall(done(flink, "list", "-r"))
    assert {state for _, _, state in listed} == {"RUNNING"}
    return {name: job for job, name, _ in listed}


def newest(cluster: Cluster, job: str, kind: str) -> int:
    """Returns the newest id of that kind.

    The job would be restored from the newest of all, so the newest is not disposed of.
    """
    return int(cluster.read(f"jobs/{job}/checkpoints")["latest"][kind]["id"])


def outcome(cluster: Cluster, job: str, trigger: str) -> Any:
    """Returns the result of a savepoint once it has ended."""
    address = f"jobs/{job}/savepoints/{trigger}"
    wait_until(lambda: cluster.read(address)["status"]["id"] == "COMPLETED")
    return cluster.read(address)["operation"]
