"""The demonstration: `flight_delays` without an end, for a person at the dashboard."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from ftdash.embedded.accounts import Account, provide_accounts
from ftdash.embedded.console import Console
from ftdash.embedded.demo_pipeline import NAME, DemoPaths, is_submitted, prepare_data, submit
from ftdash.embedded.opening import open_installation
from ftdash.embedded.ports import free_port_near
from ftdash.embedded.stack import web_address
from ftdash.embedded.supervisor import Supervisor
from ftdash.jobs import queries
from ftdash.jobs.answers import RunView

STATUS_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    port: int
    event_hours_per_s: float
    new_passwords: bool


def run_demo(options: DemoOptions, console: Console) -> None:
    """Returns when it is asked to end."""
    port = free_port_near(options.port)
    try:
        with open_installation(console, port) as supervisor:
            accounts = provide_accounts(new_passwords=options.new_passwords)
            offer_pipeline(options, console)
            greet(console, port, accounts)
            watch(supervisor, console)
    except KeyboardInterrupt:
        console.step("Started again, it continues from the latest checkpoint.")


def offer_pipeline(options: DemoOptions, console: Console) -> None:
    """Start the pipeline, unless an earlier demonstration in this home has it already."""
    paths = DemoPaths.of_home()
    console.step("Preparing the flights and the weather of 2013 ...")
    prepare_data(paths)
    if is_submitted():
        console.step(f"{NAME} is as it was left; what ran then continues.")
        return
    submit(
        paths,
        event_hours_per_s=options.event_hours_per_s,
        forever=True,
        why="demonstration",
    )
    console.step(f"{NAME} is starting on Spark; the dashboard shows how far it is.")


def greet(console: Console, port: int, accounts: list[Account]) -> None:
    console.line("")
    console.line(f"  Dashboard   {web_address(port)}")
    for account in accounts:
        password = account.password or "as printed at the first start (--new-passwords changes it)"
        console.line(f"  Sign in as  {account.name:<9} password {password}")
    console.line("  End with    Ctrl-C")
    console.line("")


def watch(supervisor: Supervisor, console: Console) -> None:
    """Until a signal raises KeyboardInterrupt."""
    while True:
        supervisor.revive()
        page = queries.pipeline_page(NAME)
        if page is not None and page.run is not None:
            console.status(status_line(page.run, datetime.now(UTC)))
        time.sleep(STATUS_PERIOD_S)


def status_line(run: RunView, now: datetime) -> str:
    parts = [
        f"{NAME} {run.state}",
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
