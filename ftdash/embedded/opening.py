"""Starts an embedded installation step by step, and announces each step before it takes time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.management import call_command

from ftdash.documentation.site import built_in_background
from ftdash.embedded import redis_server, stack
from ftdash.embedded.console import Console
from ftdash.embedded.installation import own_token
from ftdash.embedded.ledger import LEDGER_NAME, Ledger
from ftdash.embedded.supervisor import Service, Supervisor
from ftdash.supervision import java


def nothing_more() -> Iterator[Service]:
    return iter(())


@contextmanager
def open_installation(
    console: Console,
    web_port: int,
    for_pipelines: Callable[[], Iterator[Service]] = nothing_more,
) -> Iterator[Supervisor]:
    """Everything runs inside the context, and nothing of it afterwards.

    `for_pipelines`: services that must run before any driver, each started once the one before it
    is ready; called when there is a database.
    """
    home = Path(settings.FTDASH_HOME)
    console.step(f"Everything is kept in {home}.")
    ledger = Ledger(home / LEDGER_NAME, own_token())
    console.step(java.describe())
    console.step(redis_server.describe())
    provision(console)
    with (
        built_in_background(),
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
