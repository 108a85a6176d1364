"""`manage.py package ...`: the packages of authors that this installation sends to its slots."""

import getpass
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from django.core.management.base import CommandError

from ftdash.command_line.management.commands.pipeline import DEFAULT_REASON
from ftdash.installed_command import InstalledCommand, explained
from ftdash.jobs.validation import package_store
from ftdash.upgrades import packages
from pipelines.domain.errors import Rejected

if TYPE_CHECKING:
    from pipelines.domain.run import ShippedCode


class Command(InstalledCommand):
    help = "Add, list and delete packages that hold pipelines."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        everywhere = ArgumentParser(add_help=False)
        everywhere.add_argument("--json", action="store_true", help="answer in JSON, for scripts")
        logged = ArgumentParser(add_help=False, parents=[everywhere])
        logged.add_argument("--reason", default=DEFAULT_REASON, help="kept in the audit log")
        add = actions.add_parser(
            "add", parents=[logged], help="keep a package, to start pipelines from it"
        )
        add.add_argument("path", type=Path, help="a wheel, or the folder of a package")
        actions.add_parser("list", parents=[everywhere], help="all packages that were added")
        remove = actions.add_parser(
            "remove", parents=[logged], help="delete a package that nothing needs"
        )
        remove.add_argument("sha256", help="how its sha256 begins, eight characters or more")
        actions.add_parser(
            "sweep",
            parents=[logged],
            help="delete all packages that nothing needs and that are older than a day",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            found = _done(options)
        except Rejected as refusal:
            raise CommandError(explained(refusal), returncode=2) from refusal
        self._show(found, as_json=options["json"])

    def _show(self, found: "list[ShippedCode]", *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(msgspec.json.encode(found).decode())
            return
        for each in found:
            self.stdout.write(f"{each.package}  {each.version}  {each.file}  {each.sha256}")


def _done(options: dict[str, Any]) -> "list[ShippedCode]":
    """Carries out the action; returns the packages that it is about."""
    logged = {"who": getpass.getuser(), "reason": options.get("reason", "")}
    match options["action"]:
        case "add":
            return [packages.add(options["path"].expanduser(), **logged)]
        case "remove":
            return [packages.remove(options["sha256"], **logged)]
        case "sweep":
            return packages.sweep(**logged)
        case _:
            return list(package_store().listed())
