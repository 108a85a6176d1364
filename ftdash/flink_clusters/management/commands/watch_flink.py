"""`manage.py watch_flink`: lists and changes watched Flink clusters, and acts on their jobs.

The command stores an action, and carries it out itself if no worker is faster. It ends with the
action: exit status 0 if that succeeded, 1 if it failed or its outcome is not known, 2 if it was
refused.
"""

import getpass
import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from ftdash.flink_clusters import queries
from ftdash.flink_clusters.models import FlinkActionKind, FlinkActionState
from ftdash.flink_clusters.queries import ActionView
from ftdash.flink_clusters.services import actions, looking, registration
from ftdash.flink_clusters.services.registration import Place, parsed_header
from ftdash.flink_clusters.triggers import OUTCOME_WITHIN, SEND_WITHIN, TriggerOptions
from ftdash.formats import duration, plural
from ftdash.installed_command import InstalledCommand
from pipelines.domain.errors import Rejected, Retryable

NOT_DONE, REFUSED = 1, 2
LOOK_EVERY_S = 1.0
ENDS_WITHIN_S = (SEND_WITHIN + OUTCOME_WITHIN).total_seconds() + 60
HEADER_VARIABLE = "FTDASH_FLINK_HEADER"


class Command(InstalledCommand):
    help = "Watch Flink clusters by the address of their REST interface."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions_of = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        add = actions_of.add_parser("add", help="watch a cluster, or change its address or header")
        add.add_argument("name", help="its name in the dashboard")
        add.add_argument("address", help="such as http://jobmanager:8081")
        remove = actions_of.add_parser("remove", help="stop watching it, and delete its history")
        remove.add_argument("name")
        actions_of.add_parser("list", help="all watched clusters")
        jobs = actions_of.add_parser("jobs", help="the jobs of a cluster")
        jobs.add_argument("name")
        parsers = [
            actions_of.add_parser(kind.value.lower(), help=f"{kind.label} of a job")
            for kind in FlinkActionKind
        ]
        for each in parsers:
            each.add_argument("name", help="of the cluster")
            each.add_argument("job", help="its id in Flink")
        for each in (parsers[0], parsers[1]):
            each.add_argument("--directory", default="", help="empty: as the cluster has it")
            each.add_argument("--native", action="store_true", help="in the backend's own format")
        parsers[1].add_argument("--drain", action="store_true", help="end the sources first")
        parsers[3].add_argument("--full", action="store_true", help="also if incremental ones")
        for each in (add, remove, *parsers):
            each.add_argument("--reason", default="from the command line", help="for the log")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["action"]:
                case "add":
                    self._add(options)
                case "remove":
                    who, why = getpass.getuser(), options["reason"]
                    registration.remove(name=options["name"], requester=who, reason=why)
                case "list":
                    self._list()
                case "jobs":
                    self._jobs(options["name"])
                case action:
                    self._ask(FlinkActionKind(action.upper()), options)
        except (Rejected, Retryable) as refusal:
            raise CommandError(str(refusal), returncode=REFUSED) from refusal

    def _add(self, options: dict[str, Any]) -> None:
        """The header comes from the environment: arguments show in the list of processes."""
        header_name, header_value = parsed_header(os.environ.get(HEADER_VARIABLE, ""))
        found = registration.watch(
            name=options["name"],
            place=Place(
                address=options["address"], header_name=header_name, header_value=header_value
            ),
            requester=getpass.getuser(),
            reason=options["reason"],
        )
        self.stdout.write(f"{found.name} is watched: Flink {found.flink_version}")

    def _list(self) -> None:
        for each in queries.clusters():
            running = plural(each.running_count, "running job")
            self.stdout.write(f"{each.name}  {each.state.value}  {running}  {each.address}")

    def _jobs(self, name: str) -> None:
        if queries.cluster(name) is None:
            raise Rejected(f"There is no watched Flink cluster {name!r}; see `watch_flink list`.")
        for each in queries.jobs(name):
            newest = f"checkpoint of {duration(each.last_duration_ms)}"
            self.stdout.write(f"{each.jid}  {each.shown_state}  {newest}  {each.name}")

    def _ask(self, kind: FlinkActionKind, options: dict[str, Any]) -> None:
        trigger_options = TriggerOptions(
            directory=options.get("directory", ""),
            savepoint_format="NATIVE" if options.get("native") else "CANONICAL",
            drain=options.get("drain", False),
            checkpoint_type="FULL" if options.get("full") else "CONFIGURED",
        )
        name, who = options["name"], getpass.getuser()
        key = actions.ask(
            name, options["job"], kind, trigger_options, requester=who, reason=options["reason"]
        )
        done = self._carried_out(name, key)
        if done.state is not FlinkActionState.SUCCEEDED:
            raise CommandError(f"{done.state.label}: {done.problem}", returncode=NOT_DONE)
        made = done.location or (f"checkpoint {done.checkpoint_id}" if done.checkpoint_id else "")
        self.stdout.write(f"{kind.label} {done.state.label} {made}".rstrip())

    def _carried_out(self, name: str, key: int) -> ActionView:
        """Raises Rejected if the action has not ended in time; a worker then continues it."""
        retrying = Retrying(
            retry=retry_if_result(lambda found: not found.state.is_over),
            wait=wait_fixed(LOOK_EVERY_S),
            stop=stop_after_delay(ENDS_WITHIN_S),
        )
        try:
            return retrying(self._looked, name, key)
        except RetryError as late:
            raise Rejected("It has not ended yet; the job's page shows the outcome.") from late

    def _looked(self, name: str, key: int) -> ActionView:
        looking.look(looking.key_of(name))
        found = queries.action(name, key)
        if found is None:
            raise Rejected(f"The cluster {name} was removed meanwhile.")
        return found
