"""The demonstration: an endless pipeline for a person at the dashboard, by default `flight_delays`.

The installation starts step by step; each step is announced before it takes time. It gets two
accounts: one may act, one may only look.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.management import call_command

from ftdash.documentation.site import built_in_background
from ftdash.embedded import installation, stack
from ftdash.embedded.installation import free_port_near, own_mark
from ftdash.embedded.outcome import Console
from ftdash.embedded.stack import web_address
from ftdash.embedded.supervisor import LEDGER_NAME, Ledger, Service, Supervisor
from ftdash.jobs.answers import RunView
from ftdash.requests import services
from ftdash.runs.queries import pipelines as queries
from ftdash.supervision import java
from pipelines.domain.ids import RequestId
from pipelines.flows.flight_data import prepare

PASSWORD_BYTES = 12


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    password: str | None  # None: unchanged; only its digest is stored


def provide_accounts(*, new_passwords: bool) -> list[Account]:
    """`admin` may act, `operator` may look. Passwords are random; only the caller learns them."""
    admin = provide("admin", new_password=new_passwords)
    acting = Permission.objects.get(content_type__app_label="jobs", codename="operate")
    User.objects.get(username=admin.name).user_permissions.add(acting)
    return [admin, provide("operator", new_password=new_passwords)]


def provide(name: str, *, new_password: bool) -> Account:
    user, is_new = User.objects.get_or_create(username=name)
    if not is_new and not new_password:
        return Account(name, None)
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    user.set_password(password)
    user.save()
    return Account(name, password)


def nothing_more() -> Iterator[Service]:
    return iter(())


@contextmanager
def open_installation(
    console: Console,
    web_port: int,
    for_pipelines: Callable[[], Iterator[Service]] = nothing_more,
    *,
    has_documentation: bool = False,
) -> Iterator[Supervisor]:
    """Runs the whole installation inside the context, and nothing of it afterwards.

    `for_pipelines` gives services that must run before any driver. Each one starts once the one
    before it is ready. It is called when there is a database. Only people read the documentation,
    so an installation that no person visits does without.
    """
    home = Path(settings.FTDASH_HOME)
    console.step(f"Everything is kept in {home}.")
    ledger = Ledger(home / LEDGER_NAME, own_mark())
    console.step(java.describe())
    console.step(installation.describe())
    provision(console)
    with (
        built_in_background() if has_documentation else nullcontext(),
        Supervisor(ledger, home / "logs", console.step) as supervisor,
    ):
        start(supervisor, console, web_port, for_pipelines())
        yield supervisor
    ledger.close()


def start(
    supervisor: Supervisor, console: Console, web_port: int, for_pipelines: Iterator[Service]
) -> None:
    supervisor.start(*stack.broker())
    stack.check_broker()
    for service in for_pipelines:
        supervisor.start(service)
    console.step("Starting projector, worker, beat and web server ...")
    supervisor.start(*stack.control_plane(web_port))


def provision(console: Console) -> None:
    console.step("Preparing the database and the static files ...")
    call_command("migrate", verbosity=0, interactive=False)
    call_command("collectstatic", verbosity=0, interactive=False)


STATUS_PERIOD_S = 1.0


class Demonstration(Protocol):
    """A pipeline, and what it needs in addition to the installation."""

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        ...

    def services(self) -> Iterator[Service]:
        """The processes that run as long as the installation, in the order in which they start."""
        ...

    def prepare(self) -> None:
        """Provides what the pipeline needs to run. May be repeated."""
        ...

    def submit(self) -> RequestId: ...

    def output(self) -> list[str]:
        """Lines that tell a person where to find the results."""
        ...


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """`others`: demonstrations that an earlier command in this home may have left running."""

    port: int
    new_passwords: bool
    chosen: Demonstration
    others: Sequence[Demonstration] = ()


def run_demo(options: DemoOptions, console: Console) -> None:
    """Runs the demonstration; returns when a person or a signal asks it to end."""
    port = free_port_near(options.port)
    try:
        with open_installation(
            console, port, services_for(options), has_documentation=True
        ) as supervisor:
            accounts = provide_accounts(new_passwords=options.new_passwords)
            offer_pipeline(options.chosen, console)
            greet(console, port, accounts, options.chosen)
            watch(supervisor, console, options.chosen.name)
    except KeyboardInterrupt:
        console.step("Started again, it continues from the latest checkpoint.")


def services_for(options: DemoOptions) -> Callable[[], Iterator[Service]]:
    """The services of the chosen pipeline, and of those that keep running next to it."""

    def services() -> Iterator[Service]:
        yield from options.chosen.services()
        for other in options.others:
            if is_submitted(other.name):
                yield from other.services()

    return services


def offer_pipeline(chosen: Demonstration, console: Console) -> None:
    """Start the pipeline, unless an earlier demonstration in this home has started it already."""
    console.step(f"Preparing what {chosen.name} needs ...")
    chosen.prepare()
    if is_submitted(chosen.name):
        console.step(f"{chosen.name} is as it was left; what ran then continues.")
        return
    chosen.submit()
    console.step(f"{chosen.name} is starting on Spark; the dashboard shows how far it is.")


def is_submitted(name: str) -> bool:
    page = queries.pipeline_page(name)
    return page is not None and page.run is not None


def greet(console: Console, port: int, accounts: list[Account], chosen: Demonstration) -> None:
    console.line("")
    console.line(f"  Dashboard   {web_address(port)}")
    for account in accounts:
        password = account.password or "as printed at the first start (--new-passwords changes it)"
        console.line(f"  Sign in as  {account.name:<9} password {password}")
    for index, line in enumerate(chosen.output()):
        console.line(f"  {'' if index else 'Output':<11} {line}")
    console.line("  End with    Ctrl-C")
    console.line("")


def watch(supervisor: Supervisor, console: Console, name: str) -> None:
    """Shows the pipeline's status until a signal raises KeyboardInterrupt."""
    while True:
        supervisor.revive()
        page = queries.pipeline_page(name)
        if page is not None and (run := page.run) is not None:
            phase = f"{run.state} {'' if run.last_completed_at is None else 'with a checkpoint'}"
            console.status(status_line(name, run, datetime.now(UTC)), phase)
        time.sleep(STATUS_PERIOD_S)


def status_line(name: str, run: RunView, now: datetime) -> str:
    parts = [
        f"{name} {run.state}",
        last_checkpoint(run, now),
        f"{run.records_per_s:,.0f} records/s",
        f"{run.restart_count} restarts",
    ]
    return " · ".join(parts)


def last_checkpoint(run: RunView, now: datetime) -> str:
    if run.last_completed_at is None:
        return "no checkpoint yet"
    age_s = (now - run.last_completed_at).total_seconds()
    return f"checkpoint {run.last_checkpoint_id} completed {age_s:.1f} s ago"


NAME = "flight_delays"
CHECKPOINTING = {"execution.checkpointing.interval": "1 s"}


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """Paths below the home of the installation."""

    data: Path
    files_output: Path
    sql_output: Path

    @classmethod
    def of_home(cls) -> "DemoPaths":
        home = Path(settings.FTDASH_HOME)
        output = home / "output" / NAME
        return cls(home / "flight-data", output / "files", output / "flight_delays.sqlite3")


def prepare_data(paths: DemoPaths) -> None:
    """Writes the year 2013 as Parquet files, once."""
    prepare(paths.data)
    paths.sql_output.parent.mkdir(parents=True, exist_ok=True)


def submit(paths: DemoPaths, *, event_hours_per_s: float, forever: bool, why: str) -> RequestId:
    return services.submit_pipeline(
        name=NAME,
        flow=NAME,
        requester="demo",
        reason=why,
        parallelism=2,
        parameters={
            "data": str(paths.data),
            "output": str(paths.files_output),
            "sql": f"sqlite:///{paths.sql_output}",
            "speed": f"{event_hours_per_s:g}",
            "forever": "true" if forever else "false",
        },
        settings=CHECKPOINTING,
        allows_faults=True,  # people are meant to kill it
    )


@dataclass(frozen=True, slots=True)
class FlightDelays:
    """Implements `demo.Demonstration`: the year over and over."""

    event_hours_per_s: float
    name: str = NAME

    def services(self) -> Iterator[Service]:
        return iter(())

    def prepare(self) -> None:
        prepare_data(DemoPaths.of_home())

    def submit(self) -> RequestId:
        return submit(
            DemoPaths.of_home(),
            event_hours_per_s=self.event_hours_per_s,
            forever=True,
            why="demonstration",
        )

    def output(self) -> list[str]:
        paths = DemoPaths.of_home()
        return [f"{paths.files_output} (Parquet)", f"{paths.sql_output} (SQLite)"]
