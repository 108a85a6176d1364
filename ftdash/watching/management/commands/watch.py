"""`manage.py watch`: watches, saves and forks Structured Streaming queries without touching them.

`check` judges a checkpoint directory once, without a row, even while its query is dead: exit status
0 if nothing is damaged, 1 if something is, 2 if it cannot be read.
"""

import getpass
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from msgspec.structs import replace

from ftdash.formats import plural, size
from ftdash.installed_command import InstalledCommand
from ftdash.watching import queries, reading
from ftdash.watching.incident_signs import AS_USUAL, Limits
from ftdash.watching.management import work_commands
from ftdash.watching.management.work_commands import WorkCommands
from ftdash.watching.services import registration
from ftdash.watching.services.registration import Sighting
from pipelines.domain.errors import Rejected, Retryable

DAMAGED, REFUSED = 1, 2


class Command(InstalledCommand):
    help = "Watch Structured Streaming queries by their checkpoint directory or event log."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        add = actions.add_parser("add", help="watch a query, or add facts about one")
        add.add_argument("name", help="its name in the dashboard")
        add.add_argument("--directory", default="", help="its checkpointLocation; only read")
        add.add_argument("--event-log", default="", help="file or directory of the application")
        add.add_argument("--query-id", default="", help="if an event log has several queries")
        add.add_argument("--output", default="", help="of its file sink, for the doctor")
        add.add_argument("--interval-ms", type=int, help="its trigger interval")
        remove = actions.add_parser("remove", help="stop watching it, and delete its history")
        remove.add_argument("name")
        limits = actions.add_parser(
            "limits", help="set when its incidents open; with only the name, print the limits"
        )
        limits.add_argument("name")
        limits.add_argument("--late-after-s", type=float, help="without a committed batch")
        limits.add_argument("--lag-max", type=int, help="records that wait in its sources")
        limits.add_argument("--batch-max-s", type=float, help="that a batch takes")
        limits.add_argument(
            "--usual", action="store_true", help="drop the limits that are not given"
        )
        for changing in (add, remove, limits):
            changing.add_argument("--reason", default="from the command line", help="for the log")
        actions.add_parser("list", help="all watched queries")
        check = actions.add_parser("check", help="judge a checkpoint directory once")
        check.add_argument("directory")
        check.add_argument("--output", default="", help="of its file sink")
        work_commands.add_arguments(actions)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["action"]:
                case "add":
                    self._add(options)
                case "remove":
                    who, why = getpass.getuser(), options["reason"]
                    registration.remove(name=options["name"], requester=who, reason=why)
                case "limits":
                    self._limits(options)
                case "check":
                    self._check(options["directory"], options["output"])
                case "savepoint":
                    WorkCommands(self.stdout, self.stderr).savepoint(options)
                case "fork":
                    WorkCommands(self.stdout, self.stderr).fork(options)
                case "move":
                    WorkCommands(self.stdout, self.stderr).move(options)
                case "state":
                    WorkCommands(self.stdout, self.stderr).state(options)
                case _:
                    self._list()
        except (Rejected, Retryable) as refusal:
            raise CommandError(str(refusal), returncode=REFUSED) from refusal

    def _add(self, options: dict[str, Any]) -> None:
        seen = Sighting(
            directory=options["directory"],
            event_log=options["event_log"],
            query_id=options["query_id"],
            output=options["output"],
            trigger_interval_ms=options["interval_ms"],
        )
        registration.watch(
            name=options["name"],
            seen=seen,
            requester=getpass.getuser(),
            reason=options["reason"],
        )

    def _limits(self, options: dict[str, Any]) -> None:
        name, found = options["name"], queries.brief(options["name"])
        if found is None:
            raise Rejected(f"There is no watched query {name!r}.")
        options_given = {each: options[each] for each in Limits.__struct_fields__}
        given = {each: value for each, value in options_given.items() if value is not None}
        limits = found.limits
        if given or options["usual"]:
            limits = replace(AS_USUAL if options["usual"] else limits, **given)
            who, why = getpass.getuser(), options["reason"]
            registration.set_limits(name=name, limits=limits, requester=who, reason=why)
        for each in Limits.__struct_fields__:
            value = getattr(limits, each)
            shown = "as usual" if value is None else f"{value:g}"
            self.stdout.write(f"{each.replace('_', '-')}: {shown}")

    def _list(self) -> None:
        for each in queries.watched():
            newest = f"batch {each.newest.batch_id}" if each.newest else "no batch yet"
            query_id = each.query_id or "id not known yet"
            self.stdout.write(f"{each.name}  {each.state.value}  {newest}  {query_id}")

    def _check(self, directory: str, output: str) -> None:
        found = reading.look_into(directory, settings.WATCH_ROOTS, output=output).found
        points = plural(found.point_count, "batch", "batches")
        self.stdout.write(
            f"query {found.query_id or 'without an id'}: {points},"
            f" {size(found.size_bytes)}, state in {found.store}"
        )
        for each in found.findings:
            self.stdout.write(
                f"{each.severity}: {each.text}\n  cost: {each.cost}\n  next: {each.next_step}"
            )
        if found.recommended:
            self.stdout.write(f"recommended recovery point: batch {found.recommended.batch_id}")
        if not found.findings:
            self.stdout.write("nothing wrong")
        if found.damage_count:
            damage = plural(found.damage_count, "error")
            raise CommandError(f"The checkpoint has {damage}.", returncode=DAMAGED)
