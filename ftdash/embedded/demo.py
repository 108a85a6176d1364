"""The demonstration: an endless pipeline for a person at the dashboard."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from ftdash.embedded.console import Console
from ftdash.embedded.installation import Account, provide_accounts
from ftdash.embedded.opening import open_installation
from ftdash.embedded.ports import free_port_near
from ftdash.embedded.stack import web_address
from ftdash.embedded.supervisor import Service, Supervisor
from ftdash.jobs.answers import RunView
from ftdash.runs.queries import pipelines as queries
from pipelines.domain.ids import RequestId

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
    """Returns when it is asked to end."""
    port = free_port_near(options.port)
    try:
        with open_installation(console, port, services_for(options)) as supervisor:
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
    """Until a signal raises KeyboardInterrupt."""
    while True:
        supervisor.revive()
        page = queries.pipeline_page(name)
        if page is not None and page.run is not None:
            console.status(status_line(name, page.run, datetime.now(UTC)))
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
