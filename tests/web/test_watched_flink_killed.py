"""A real Flink of each version is watched, fails, takes a savepoint, and is killed."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftdash.embedded.installation import LOOPBACK
from ftdash.flink_clusters import queries
from ftdash.flink_clusters.models import FlinkAction, FlinkActionKind, FlinkActionState
from ftdash.flink_clusters.queries import JobDetail
from ftdash.flink_clusters.services import actions, looking, registration
from ftdash.flink_clusters.services.registration import Place
from ftdash.flink_clusters.triggers import TriggerOptions
from pipelines.domain.errors import Retryable
from tests.java_programs import JavaProgram, ProgramMissing
from tests.polling import wait_until
from tests.reserved_ports import reserved_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("site")]

SOURCE = Path(__file__).parent / "WatchedJob.java"
VERSIONS = ("1.20.3", "2.3.0")
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"
OPENED = [f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "util")]
START_S = 180.0
"""Two Javas may start at once on a busy machine."""

CHECKPOINTS = 12
"""More than the ten that Flink keeps."""


def program(version: str) -> JavaProgram:
    wanted = (
        ("org.apache.flink", "flink-clients", version),
        ("org.apache.flink", "flink-runtime-web", version),
        ("org.eclipse.jdt", "ecj", "3.33.0"),  # a Java runtime has no compiler
    )
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{number}</version></dependency>"
        for group, artifact, number in wanted
    )
    return JavaProgram("WatchedFlink", version, dependencies)


@dataclass(frozen=True, slots=True)
class RealFlink:
    address: str
    directory: Path
    process: "subprocess.Popen[bytes]"

    def fail_once(self) -> None:
        (self.directory / "fail").touch()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the job once, with the oldest version; it runs on later ones too."""
    classes = tmp_path_factory.mktemp("classes")
    words = [COMPILER, "-11", "-nowarn", "-d", str(classes), str(SOURCE)]
    try:
        compile_it = program(VERSIONS[0]).command(*words)
    except ProgramMissing as why:
        pytest.skip(str(why))
    at = compile_it.index("-cp") + 1
    subprocess.run([*compile_it, "-classpath", compile_it[at]], check=True)
    return classes


@pytest.fixture(params=VERSIONS)
def flink(request: pytest.FixtureRequest, classes: Path, tmp_path: Path) -> Iterator[RealFlink]:
    flink = program(request.param)
    with reserved_port() as port, (tmp_path / "flink.log").open("wb") as log:
        # A killed Flink leaves its files behind, so they are where pytest deletes them.
        options = [*OPENED, f"-Djava.io.tmpdir={tmp_path}"]
        try:
            run = flink.command("WatchedJob", str(port), str(tmp_path), options=options)
        except ProgramMissing as why:
            pytest.skip(str(why))
        run[run.index("-cp") + 1] += f":{classes}"
        process = subprocess.Popen(run, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield RealFlink(f"http://{LOOPBACK}:{port}", tmp_path, process)
        finally:
            process.kill()
            process.wait()


def test_the_history_of_a_real_cluster_is_kept_after_it_is_killed(flink: RealFlink) -> None:
    said = (flink.directory / "flink.log").read_text
    wait_until(lambda: is_registered(flink), within_s=START_S, otherwise=said)
    looked(lambda job: job.job.state == "RUNNING" and job.job.counts.completed >= 2)

    (brief,) = queries.jobs("prod")
    action = actions.ask(
        "prod",
        brief.jid,
        FlinkActionKind.SAVEPOINT,
        TriggerOptions(),
        requester="ada",
        reason="a deploy",
    )
    looked(lambda _: FlinkAction.objects.get(pk=action).ended_at is not None)
    taken = FlinkAction.objects.get(pk=action)
    assert (taken.state, taken.sent_count) == (FlinkActionState.SUCCEEDED, 1), taken.problem
    assert Path(taken.location.removeprefix("file:")).is_dir()

    flink.fail_once()
    looked(
        lambda job: (
            {"EXCEPTION", "RESTORED"} <= {each.kind.value for each in job.events}
            and job.job.kept_count >= CHECKPOINTS
            and bool(job.pressure)
        )
    )
    flink.kill()
    for _ in range(2):
        looking.look(looking.key_of("prod"))

    detail = detail_now()
    assert (detail.cluster.state, detail.job.shown_state) == ("STALE", "STALE")
    assert "does not answer" in detail.cluster.problem
    assert detail.job.kept_count >= CHECKPOINTS
    assert taken.location in [each.external_path for each in detail.points]
    failures = [each for each in detail.events if each.kind == "EXCEPTION"]
    assert "The test asked for this failure." in failures[0].text
    shown = [
        found
        for each in detail.checkpoints.rows
        if (found := queries.checkpoint("prod", brief.jid, each.checkpoint_id)) is not None
    ]
    assert max(len(each.timeline.subtasks) for each in shown) == 4


def is_registered(flink: RealFlink) -> bool:
    try:
        registration.watch(
            name="prod", place=Place(address=flink.address), requester="ada", reason="to see it"
        )
    except Retryable:
        return False
    return True


def looked(holds: Callable[[JobDetail], bool]) -> None:
    """Looks again and again, as the worker does, until `holds` returns True."""

    def look() -> bool:
        looking.look(looking.key_of("prod"))
        return bool(queries.jobs("prod")) and holds(detail_now())

    wait_until(look, within_s=START_S, otherwise=lambda: str(queries.jobs("prod")))


def detail_now() -> JobDetail:
    (brief,) = queries.jobs("prod")
    found = queries.job_detail("prod", brief.jid, page=1, per_page=50)
    assert found is not None
    return found
