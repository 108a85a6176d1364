"""The example `examples/shop`, as a team without our source has it: wheels, and no checkout.

Its own tests run where only our wheel is installed. Then its pipeline runs from its wheel with
`submit --code` on a standalone cluster, where it is upgraded twice. Processes are killed while an
answer is under way. The output is compared with plain Python.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from redis import Redis

from pipelines.bus.journal import read_journal
from pipelines.domain.events import (
    CheckpointCompleted,
    Envelope,
    Event,
    FailureOccurred,
    RunEnded,
    RunStarted,
    SlotConnected,
)
from pipelines.domain.status import JobStatus
from pipelines.testing.servers import own_schema, postgres_server, redis_server
from tests import shop_orders
from tests.new_home import new_home
from tests.polling import wait_until
from tests.project_wheels import EARLIER, shop_project, shop_version
from tests.shop_orders import FRAUD_LIMIT, at, fields, part, punctual, rates, write_lines
from tests.standalone_cluster import CannotHaveCluster, standalone_cluster

pytestmark = [pytest.mark.slow]

WITHIN_S = 150.0
INTERVAL = "1 s"
"""A checkpoint of a dozen operators and six sinks takes long: more of them keep a core busy."""

VERSIONS = ("1.0", "2.0", "3.0")
TESTS = Path(__file__).parents[1]
Place = Callable[..., list[str]]


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_of_the_shop_has_the_changes_that_it_announces(
    version: str, tmp_path: Path
) -> None:
    project = shop_project(tmp_path, version)
    flow, fraud = ((project / "shop" / name).read_text() for name in ("flow.py", "fraud.py"))

    assert f'"{version}"' in (project / "shop" / "__init__.py").read_text()
    assert ("largest-files" in flow) is (version != "1.0")
    assert ('"largest", pa.int64()' in fraud) is (version == "3.0")
    held = {str(path.relative_to(EARLIER)) for path in EARLIER.rglob("*.py")}
    assert held == {
        *("1.0/shop/__init__.py", "1.0/shop/flow.py"),
        *("2.0/shop/__init__.py", "2.0/shop/fraud.py"),
    }


def test_the_shops_own_tests_pass_with_only_our_wheel_installed(
    installed: Path, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:django", "-p", "no:cacheprovider"],
        cwd=shop_project(tmp_path, VERSIONS[-1]),
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "8 passed" in ran.stdout


@dataclass(frozen=True, slots=True)
class Shop:
    """A control plane that has only the wheels, a customer service, and the shop's input."""

    root: Path
    wheels: dict[str, Path]
    master: str
    control_plane: "Talking"
    service: "Talking"
    service_address: str
    engine: sa.Engine
    redis: str
    journals: "Journals"

    def command(self, *words: str) -> str:
        """Returns the output of `ftdash ...`, which the process that hosts everything runs."""
        answers = len(self.control_plane.said())
        self.control_plane.say(json.dumps(words))
        self.wait_for(
            lambda: self.control_plane.has_said() and len(self.control_plane.said()) > answers,
            " ".join(words),
        )
        done = json.loads(self.control_plane.said()[answers])
        assert done["status"] == 0, f"{words}: {done['output']}{self.logs()}"
        output: str = done["output"]
        return output

    def submit(self, version: str, settings: dict[str, str]) -> None:
        given = {
            "redis": f"file:{self.root / 'redis'}",
            "rates": str(self.root / "rates"),
            "output": str(self.root / "output"),
            "customers": self.service_address,
            "patience": "10 min",
            "database": f"file:{self.root / 'database'}",
            "fraud_limit": str(FRAUD_LIMIT),
            "follow": "true",
        }
        words = [f"--parameter={name}={text}" for name, text in given.items()]
        words += [f"--set={name}={text}" for name, text in settings.items()]
        words += [f"--code={self.wheel(version)}", f"--master={self.master}", "--parallelism=2"]
        self.command("pipeline", "submit", "shop", *words, "--wait")

    def upgrade(self, version: str) -> None:
        """Upgrades in one step."""
        self.command("upgrade", "shop", "--to", self.wheel(version), "--wait")

    def stop(self, *more: str) -> str:
        """Stops the pipeline and returns the path of its savepoint."""
        self.command("pipeline", "stop", "shop", "--wait", *more)
        points = json.loads(self.command("pipeline", "savepoints", "shop", "--json"))
        newest: str = max(points, key=lambda point: point["checkpoint_id"])["path"]
        return newest

    def go_on(self, version: str, savepoint: str) -> None:
        """Continues from a savepoint of another version; a restore begins with the preflight."""
        options = [f"--code={self.wheel(version)}", f"--master={self.master}", "--wait"]
        self.command("pipeline", "restore", "shop", savepoint, *options)

    def receive(self, number: int) -> None:
        """Sends the orders of one part."""
        with Redis.from_url(self.redis) as client, client.pipeline() as sent:
            for row in part(number):
                sent.xadd("orders", fields(row))
            sent.execute()

    def wheel(self, version: str) -> str:
        return str(self.wheels[version])

    def events(self, *kinds: type[Event]) -> list[Any]:
        """Returns the events of all runs so far, in the order of their time."""
        return [each.event for each in self.journals.read() if isinstance(each.event, kinds)]

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        wait_until(holds, within_s=WITHIN_S, otherwise=lambda: f"{what}: {self.logs()}")

    def wait_for_more(self, kind: type[Event], count: int) -> None:
        seen = len(self.events(kind))
        self.wait_for(lambda: len(self.events(kind)) >= seen + count, f"{count} x {kind.__name__}")

    def kill_while_held(self, customer: str, kill: Callable[[], None]) -> None:
        """Kills while the answer about this customer is under way and part of a checkpoint."""
        self.wait_for(lambda: self.service.has_said(customer), f"a request for {customer}")
        self.wait_for_more(CheckpointCompleted, 2)
        asked = self.service.said().count(customer)
        kill()
        self.wait_for(lambda: self.service.said().count(customer) > asked, "it is asked for again")
        self.service.say(customer)

    def kill_slot(self) -> None:
        newest = [event for event in self.events(SlotConnected) if event.slot == 1][-1]
        os.kill(newest.pid, signal.SIGKILL)

    def kill_executor(self) -> None:
        newest = self.events(SlotConnected)[-1]
        parents = psutil.Process(newest.pid).parents()
        next(each for each in parents if "CoarseGrained" in " ".join(each.cmdline())).kill()

    def kill_driver(self) -> None:
        os.kill(self.events(RunStarted)[-1].driver_pid, signal.SIGKILL)

    def countries(self) -> dict[tuple[str, datetime], tuple[int, int]]:
        """Returns the committed rows, each once."""
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table("countries"):
                return {}
            asked = sa.text("select country, window_start, orders, euro_cents from countries")
            rows = connection.execute(asked).all()
        found = {(country, start): (orders, cents) for country, start, orders, cents in rows}
        assert len(found) == len(rows), "no row comes twice"
        return found

    def wait_for_minutes_until(self, end: datetime) -> None:
        """Waits until the table has all windows before `end`."""
        expected = {key for key in shop_orders.per_country(punctual()) if key[1] < end}
        self.wait_for(lambda: expected <= self.countries().keys(), f"windows until {end}")

    def files(self, name: str) -> list[dict[str, Any]]:
        found = sorted((self.root / "output" / name).glob("part-*.parquet"))
        tables = [ds.dataset(path).to_table() for path in found]
        return [row for table in tables for row in table.to_pylist()]

    def logs(self) -> str:
        drivers = (self.root / "home" / "jobs").rglob("driver.log")
        return "\n".join(path.read_text()[-3_000:] for path in drivers)


@dataclass(frozen=True, slots=True)
class Journals:
    """Reads the journals of all runs, each on from where it ended the last time."""

    runs: Path
    offsets: dict[Path, int] = field(default_factory=dict)
    envelopes: list[Envelope] = field(default_factory=list)

    def read(self) -> list[Envelope]:
        """Returns all events so far, in the order of their time."""
        for journal in self.runs.glob("*/journal.jsonl"):
            while news := self._news(journal):
                self.envelopes.extend(news)
        self.envelopes.sort(key=lambda envelope: envelope.at_ms)
        return self.envelopes

    def _news(self, journal: Path) -> list[Envelope]:
        news, self.offsets[journal] = read_journal(journal, self.offsets.get(journal, 0))
        return news


@dataclass(frozen=True, slots=True)
class Servers:
    database: str
    redis: str


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Builds the wheel of each version of the shop."""
    place = tmp_path_factory.mktemp("shop")
    return {version: shop_version(place, version) for version in VERSIONS}


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Starts both servers on sockets in directories, which every machine of a cluster reaches."""
    with postgres_server() as directory, redis_server() as redis:
        yield Servers(own_schema(directory, "shop"), redis)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_two_upgrades_under_kills_on_a_standalone_cluster(
    installed: Path, tmp_path: Path, servers: Servers, wheels: dict[str, Path]
) -> None:
    (tmp_path / "cluster").mkdir()
    try:
        # Each driver starts an executor on each worker; `test_standalone_cluster` has two workers.
        with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
            host = cluster.master.address
            with opened(
                installed,
                tmp_path,
                servers,
                wheels,
                master=cluster.url,
                host=host,
                place=cluster.master.command,
                environment=cluster.environment,
            ) as shop:
                assert_exact_over_upgrades(shop, {"jobmanager.rpc.address": host})
    except CannotHaveCluster as refusal:
        pytest.skip(f"No cluster of network namespaces on this machine: {refusal}")


def assert_exact_over_upgrades(shop: Shop, settings: dict[str, str]) -> None:
    submit(shop, "1.0", settings)
    shop.kill_while_held("de-held-1", shop.kill_slot)
    shop.wait_for_minutes_until(at(540))

    shop.upgrade("2.0")
    shop.receive(2)
    shop.kill_while_held("de-held-2", shop.kill_executor)
    shop.wait_for_minutes_until(at(1_140))

    shop.go_on("3.0", shop.stop())
    shop.receive(3)
    shop.kill_while_held("de-held-3", shop.kill_driver)
    shop.wait_for_minutes_until(at(1_740))
    shop.stop("--drain")

    assert_ended_after_kills(shop)
    assert_output(shop)
    assert "largest" not in alarms(shop)["fr-rich", at(60)], "version 1 had no such column"


def submit(shop: Shop, version: str, settings: dict[str, str]) -> None:
    """Submits the pipeline with the first part of its input."""
    write_lines(shop.root / "rates" / "0.jsonl", rates())
    shop.receive(1)
    shop.submit(version, settings | {"execution.checkpointing.interval": INTERVAL})


def assert_ended_after_kills(shop: Shop) -> None:
    assert shop.events(RunEnded)[-1].status is JobStatus.FINISHED, shop.logs()
    assert len(shop.events(FailureOccurred)) >= 2, "the kills of the slot and of the executor"
    assert len({run.driver_pid for run in shop.events(RunStarted)}) >= 4, "the driver's, too"


def assert_output(shop: Shop) -> None:
    largest_from = at(600)  # the first window that the operator added by version 2 saw whole
    countries = shop_orders.per_country(punctual())
    assert shop.countries() == {key: (len(each), sum(each)) for key, each in countries.items()}

    products = {(row["product"], row["window_start"]): row["orders"] for row in files(shop)}
    assert products == shop_orders.per_product(punctual())
    late = sorted(shop_orders.late(), key=lambda row: row["order"])
    assert sorted(shop.files("late"), key=lambda row: row["order"]) == late
    assert sorted(shop.files("unrated"), key=lambda row: row["order"]) == late

    since = {key: max(each) for key, each in countries.items() if key[1] >= largest_from}
    largest = {(row["country"], row["window_start"]): row for row in shop.files("largest")}
    found = {key: row["euro_cents"] for key, row in largest.items() if key[1] >= largest_from}
    assert found == since

    spent = {key: (row["orders"], row["euro_cents"]) for key, row in alarms(shop).items()}
    assert spent == shop_orders.alarms(punctual())
    assert {customer for customer, _ in spent} == {"fr-rich", "it-slow"}
    assert alarms(shop)["it-slow", at(1_140)]["largest"] == 60_000


def alarms(shop: Shop) -> dict[tuple[str, datetime], dict[str, Any]]:
    found = {(row["customer"], row["minute"]): row for row in shop.files("alarms")}
    assert len(found) == len(shop.files("alarms"))
    return found


def files(shop: Shop) -> list[dict[str, Any]]:
    rows = shop.files("products")
    assert len({(row["product"], row["window_start"]) for row in rows}) == len(rows)
    return rows


@contextmanager
def opened(
    installed: Path,
    root: Path,
    servers: Servers,
    wheels: dict[str, Path],
    *,
    master: str,
    host: str,
    place: Place,
    environment: dict[str, str],
) -> Iterator[Shop]:
    new_home(root / "home")
    (root / "rates").mkdir()
    (root / "database").write_text(servers.database)
    (root / "redis").write_text(servers.redis)
    outside = {name: text for name, text in os.environ.items() if not is_of_tests(name)}
    base = {**outside, **environment, "PYTHONPATH": str(installed)}
    hosting = place(sys.executable, str(TESTS / "bare_installation.py"), str(root / "home"))
    serving = place(sys.executable, str(TESTS / "held_customers.py"), host)
    with talking(serving, root, base) as service, talking(hosting, root, base) as control_plane:
        for each in (service, control_plane):
            wait_until(each.has_said, within_s=WITHIN_S, otherwise=each.log.read_text)
        engine = sa.create_engine(servers.database)
        yield Shop(
            root,
            wheels,
            master,
            control_plane,
            service,
            f"http://{host}:{service.said()[0]}",
            engine,
            servers.redis,
            Journals(root / "home" / "jobs" / "shop" / "runs"),
        )
        engine.dispose()


def is_of_tests(name: str) -> bool:
    return name.startswith(("FTDASH_", "DJANGO_", "PYTEST_"))


@dataclass(frozen=True, slots=True)
class Talking:
    """A program that reads and prints lines."""

    process: "subprocess.Popen[str]"
    output: Path
    log: Path

    def said(self) -> list[str]:
        """Returns the complete lines so far."""
        return self.output.read_text().split("\n")[:-1]

    def has_said(self, line: str | None = None) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return line in self.said() if line else bool(self.said())

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@contextmanager
def talking(command: list[str], root: Path, environment: dict[str, str]) -> Iterator[Talking]:
    """Runs a program until its standard input ends, and kills it if it does not end in time."""
    name = next(Path(word).stem for word in command if word.endswith(".py"))
    output, log = root / f"{name}.txt", root / f"{name}.log"
    with output.open("w") as lines, log.open("w") as complaints:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=lines,
            stderr=complaints,
            text=True,
        )
    assert process.stdin is not None
    try:
        yield Talking(process, output, log)
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
