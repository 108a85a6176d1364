"""Set-up for all tests: a home of their own, a Java for Spark, and no silent skips in CI.

The whole suite runs in two processes. One of them runs the tests that start real slots or Spark,
where time matters, one after the other from the beginning. The other runs the tests that only
compute. The files that drive a browser or workers come last; the process that is free takes the
next one.

A plain `python -m pytest` leaves out the slow tests (`tests/thorough.py`) and says how many.
"""

import faulthandler
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TextIO

import pytest
from django.conf import settings
from django.db import connection
from pytest_django import DjangoDbBlocker
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from ftdash.supervision import java
from tests.new_home import MACHINE, migrated_database
from tests.running_tests import RunningTests
from tests.shared_machine import SharedMachine
from tests.spark_classes import begin_archive, mapped_from
from tests.sweeps import left_out_by
from tests.thorough import is_slow, runs_slow_tests

if TYPE_CHECKING:
    from tests.brokers.kafka_broker import KafkaBroker
    from tests.brokers.redis_broker import RedisBroker
    from tests.object_server import ObjectServer
    from tests.postgres_server import PostgresServer

WORKERS = 2
"""One for each of two cores, which are busy nearly all the time. With a third process, even one
that yields to them, the Spark tests take longer, and the suite has to wait for them."""
PROCESSES, KAFKA, PAGES = "processes", "kafka", "pages"
PLACES = {"integration": PROCESSES, "processes": PROCESSES, "bench": KAFKA}
LONGEST_OF_PAGES = "tests/web/test_pages_in_browser.py"
FILES_OF_PAGES = ("test_tasks.py", "test_projector_process.py", "test_flink_cli.py")
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of every Java when tests start Spark. Java only hosts here and lives for seconds;
optimising its code costs a fourth of all the processor time of a test."""
REQUIRE_ALL = os.environ.get("FTDASH_REQUIRE_ALL") == "1"
LEFT_OUT = pytest.StashKey[int]()
"""How many slow tests this process has left out."""
LEFT_OUT_BY_WORKER = "left_out"
ARCHIVE = pytest.StashKey[subprocess.Popen[bytes]]()
STACKS = pytest.StashKey[TextIO]()
"""Where this process writes the stack of each thread if it dies."""
FIRST_WORKER = "gw0"
GIVES_WAY_S = 60.0
"""After its time limit a test fails. If it has still not ended this much later, its process
ends."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nemesis-seconds",
        type=float,
        default=2.4,
        help="how long processes of a run are killed; real trouble takes 120 or more",
    )
    parser.addoption(
        "--all",
        dest="runs_all",
        action="store_true",
        help="run the slow tests too; FTDASH_REQUIRE_ALL=1 and naming tests have the same effect",
    )


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Makes empty tables without the migrations; `django_db_setup` fills them."""
    connection.settings_dict["TEST"]["MIGRATE"] = False


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Copies a database that `migrate` has filled.

    The migrations take longer than most tests, and each process of the suite would run them.
    """
    with django_db_blocker.unblock(), closing(sqlite3.connect(migrated_database())) as migrated:
        connection.ensure_connection()
        migrated.backup(connection.connection)


@pytest.fixture
def nemesis_s(request: pytest.FixtureRequest) -> float:
    seconds: float = request.config.getoption("--nemesis-seconds")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """Gives the tests a directory of their own, instead of the home of an installation."""
    home = Path(tempfile.mkdtemp(prefix="ftdash-tests-"))
    (home / "static").mkdir()  # each test client would warn that nothing is collected in it
    os.environ["FTDASH_HOME"] = str(home)
    os.environ.setdefault(MACHINE, str(home))  # of the process that starts the others
    if settings.configured:
        settings.FTDASH_HOME = home
        settings.JOBS_ROOT = home / "jobs"
        settings.STATIC_ROOT = home / "static"
    keep_compiled_code()
    config.stash[STACKS] = stacks_file()
    faulthandler.enable(config.stash[STACKS])
    config.stash[LEFT_OUT] = 0
    config.option.runs_all = runs_slow_tests(
        asked=config.option.runs_all, required=REQUIRE_ALL, named=not is_whole_suite(config)
    )
    if is_whole_suite(config) and not hasattr(config, "workerinput"):
        running = RunningTests()
        config.pluginmanager.register(running)
        running.watch()


def keep_compiled_code() -> None:
    """Makes Python keep compiled modules in `__pycache__`, even if the environment forbids it.

    Tests start hundreds of processes. Each would compile all modules again, which takes half of its
    start time.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def stacks_file() -> TextIO:
    """Opens a file for each of the suite's processes; the summary shows what they wrote."""
    if (process := os.environ.get("PYTEST_XDIST_WORKER")) is None:
        return os.fdopen(os.dup(2), "w")  # which no test captures
    return (Path(os.environ[MACHINE]) / f"{process}.stacks").open("a")


def is_whole_suite(config: pytest.Config) -> bool:
    """Returns True if the command names no test, file or directory."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def pytest_unconfigure(config: pytest.Config) -> None:
    if (process := config.stash.get(ARCHIVE, None)) is not None:
        process.kill()
        process.wait()
    faulthandler.disable()
    config.stash[STACKS].close()
    shutil.rmtree(os.environ["FTDASH_HOME"], ignore_errors=True)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Returns the number of processes. A test that you name runs in the process that you start."""
    return WORKERS if is_whole_suite(config) else 0


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return BesideProcesses(config, log)


class BesideProcesses(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each of the suite's processes one group of tests after another."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])

    def remove_node(self, node: WorkerController) -> str | None:
        """Gives the process's remaining tests to others, without the test that ended the process.

        The original gives back all its groups. A process that is given a group without a remaining
        test waits for ever, and a test that ended its process would end the next one too.
        """
        groups: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        waiting = [
            test for each in groups.values() for test, is_done in each.items() if not is_done
        ]
        if not waiting:
            return None
        ended_by, *others = waiting
        for test in others:
            self.workqueue.setdefault(self._split_scope(test), {})[test] = False
        for each in self.nodes:
            self._reschedule(each)
        return ended_by


def group_of(file: str) -> str:
    """Returns the group of a file; its tests run in one process, in their order.

    `file` is relative to the project.
    """
    _, place, *_ = parts = PurePosixPath(file).parts
    name = parts[-1]
    if place in PLACES:
        return PLACES[place]
    if is_of_pages(name):
        return f"{PAGES} {name}"
    if "kafka" in name:
        return KAFKA  # one broker for all of them
    return file


def is_of_pages(name: str) -> bool:
    return "browser" in name or name in FILES_OF_PAGES


def turn_of(item: pytest.Item) -> int:
    """Puts tests that need the machine alone first, then the longest group, then the others.

    Tests of pages come last, the longest file first, so that both processes end at about the same
    time.
    """
    if item.get_closest_marker("alone") is not None:
        return 0
    file = item.nodeid.partition("::")[0]
    group = group_of(file)
    if group.startswith(PAGES):
        return 3 if file == LONGEST_OF_PAGES else 4
    return 1 if group == PROCESSES else 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.runs_all:
        leave_out_slow(config, items)
    elif is_whole_suite(config):
        leave_out_of_sweeps(config, items)
    items.sort(key=turn_of)
    if any(item.get_closest_marker("spark") for item in items):
        os.environ.update(java.environment(), JDK_JAVA_OPTIONS=SHORT_LIVED_JAVA)
        if is_whole_suite(config):
            share_classes(config)


def share_classes(config: pytest.Config) -> None:
    """Has the first process of the suite start writing the archive, while the others begin."""
    archive = Path(os.environ[MACHINE]) / "spark.jsa"
    if os.environ.get("PYTEST_XDIST_WORKER") == FIRST_WORKER:
        config.stash[ARCHIVE] = begin_archive(archive)
    os.environ.update(mapped_from(archive))


def leave_out_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if is_slow(item.nodeid)]
    items[:] = [item for item in items if not is_slow(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = len(left_out)


def leave_out_of_sweeps(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = left_out_by(item.nodeid for item in items)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[LEFT_OUT_BY_WORKER] = session.config.stash[LEFT_OUT]


def pytest_testnodedown(node: WorkerController) -> None:
    """Takes the count of one process for all, because each process collects all tests."""
    output: dict[str, int] = getattr(node, "workeroutput", {})  # a process that died has none
    node.config.stash[LEFT_OUT] = output.get(LEFT_OUT_BY_WORKER, node.config.stash[LEFT_OUT])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for file in sorted(Path(os.environ[MACHINE]).glob("*.stacks")):
        if stacks := file.read_text():
            terminalreporter.section(f"{file.stem} died")
            terminalreporter.write(stacks)
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.write_line(
            f"{left_out} slow tests were left out. `python -m pytest --all` runs them too."
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector away from the collected tests, which live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wraps all other hooks, so that no test's time includes the wait for the machine."""
    is_alone = item.get_closest_marker("alone") is not None
    with SharedMachine(Path(os.environ[MACHINE])).used(alone=is_alone), ended_if_it_hangs(item):
        return (yield)


@contextmanager
def ended_if_it_hangs(item: pytest.Item) -> Iterator[None]:
    """Ends this process if the test hangs.

    `timeout` fails a test, but what the test leaves behind may wait for ever, as a pool waits for
    its threads. This process then prints the stack of each thread and ends; the others finish the
    suite.
    """
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    where = item.config.stash[STACKS]
    faulthandler.dump_traceback_later(limit_s + GIVES_WAY_S, exit=True, file=where)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def objects() -> Iterator["ObjectServer"]:
    """A real object store, imported here because the import takes long."""
    from tests.object_server import object_server

    with object_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["RedisBroker"]:
    from tests.brokers.redis_broker import redis_broker

    with redis_broker(tmp_path_factory.mktemp("redis")) as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["KafkaBroker"]:
    from tests.brokers.kafka_broker import kafka_broker
    from tests.java_programs import ProgramMissing

    with ExitStack() as stack:
        try:
            broker = stack.enter_context(kafka_broker(tmp_path_factory.mktemp("kafka")))
        except ProgramMissing as why:
            pytest.skip(str(why))
        yield broker


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    from tests.postgres_server import postgres_server

    with postgres_server(max_prepared_transactions=1000) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if REQUIRE_ALL and report.skipped:
        refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Fails a skipped test where everything is required: what a machine lacks is no excuse."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"FTDASH_REQUIRE_ALL=1 allows no skip: {reason}"
