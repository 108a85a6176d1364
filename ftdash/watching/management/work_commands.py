"""The parts of `manage.py watch` that work on the files of a query: savepoints, forks, state.

A command carries the work out itself, prints each step, and ends with status 2 if it fails.
"""

import getpass
import sys
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import CommandError, OutputWrapper

from ftdash.formats import plural, size
from ftdash.watching.models import QueryWork, WorkState
from ftdash.watching.queries import works
from ftdash.watching.services import execution, forks, savepoints, state
from ftdash.watching.work_requests import LookAtState, Rewind, StatePlace, TakeSavepoint
from pipelines.domain.errors import Rejected
from pipelines.structured.fork import Boundaries
from pipelines.structured.preflight import Output

REFUSED = 2


def add_arguments(actions: "_SubParsersAction[ArgumentParser]") -> None:
    savepoint = actions.add_parser("savepoint", help="take, list, verify and delete savepoints")
    doing = savepoint.add_subparsers(dest="doing", required=True, metavar="ACTION")
    take = doing.add_parser("take", help="copy one batch of a query that may run")
    take.add_argument("name")
    take.add_argument("--label", required=True)
    take.add_argument("--batch", type=int, help="default: the newest that is complete")
    take.add_argument(
        "--with-next-boundaries", action="store_true", help="keep what the next batch has read"
    )
    take.add_argument("--keep-days", type=float, help="delete it then; default: never")
    doing.add_parser("list", help="of one query").add_argument("name")
    verify = doing.add_parser("verify", help="compare every file with its digest")
    delete = doing.add_parser("delete", help="delete its files")
    delete.add_argument("--confirm", required=True, metavar="LABEL", help="its label, again")
    keep = doing.add_parser("keep", help="set how long it is kept from now on")
    keep.add_argument("--days", type=float, help="default: without end")
    manifest = doing.add_parser("manifest", help="print the manifest")
    for each in (verify, delete, keep, manifest):
        each.add_argument("name")
        each.add_argument("key", type=int, help="as `savepoint list` has it")
    for each in (take, verify, delete, keep):
        _add_reason(each)
    _add_fork(actions)
    _add_state(actions)
    move = actions.add_parser("move", help="show where a pipeline starts to continue after a batch")
    move.add_argument("name")
    move.add_argument("--batch", type=int, help="default: the newest that is complete")
    move.add_argument("--savepoint", type=int, metavar="KEY", help="of this savepoint")


def _add_fork(actions: "_SubParsersAction[ArgumentParser]") -> None:
    fork = actions.add_parser("fork", help="rewind a query into a new directory")
    fork.add_argument("name")
    fork.add_argument("--target", required=True, help="a new directory, for checkpointLocation")
    fork.add_argument("--batch", type=int, help="default: the newest that is complete")
    fork.add_argument("--savepoint", type=int, metavar="KEY", help="start from a savepoint")
    fork.add_argument(
        "--boundaries",
        choices=[each.value for each in Boundaries],
        default=Boundaries.NEW.value,
        help="same: the next batch takes exactly the rows that it had",
    )
    fork.add_argument(
        "--output",
        choices=[each.value for each in Output],
        default=Output.NEW.value,
        help="what happens to the rows that were written after the batch",
    )
    fork.add_argument(
        "--output-target", default="", help="a new place for the output of a file sink"
    )
    fork.add_argument(
        "--partitions",
        type=int,
        help="repartition the state; Spark calls that experimental, and needs RocksDB",
    )
    fork.add_argument("--plan", type=Path, help="what `explain` of ftdash_listener has written")
    fork.add_argument("--check", action="store_true", help="give the verdict and write nothing")
    _add_reason(fork)


def _add_state(actions: "_SubParsersAction[ArgumentParser]") -> None:
    look = actions.add_parser("state", help="print rows of a query's state; starts Spark")
    look.add_argument("name")
    look.add_argument("--batch", type=int, required=True)
    look.add_argument("--savepoint", type=int, metavar="KEY", help="of this savepoint")
    look.add_argument("--compare-batch", type=int, help="print what differs from this batch")
    look.add_argument("--compare-savepoint", type=int, metavar="KEY")
    look.add_argument("--operator", type=int, default=0)
    look.add_argument("--store", default="default")
    look.add_argument("--key", default="", help="a part of the key, as JSON")
    _add_reason(look)


def _add_reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", default="from the command line", help="for the log")


class WorkCommands:
    """Raises Rejected, and CommandError if the work fails."""

    def __init__(self, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
        self._stdout = stdout
        self._stderr = stderr

    def savepoint(self, options: dict[str, Any]) -> None:
        name, who, why = options["name"], getpass.getuser(), options.get("reason", "")
        match options["doing"]:
            case "take":
                request = TakeSavepoint(
                    label=options["label"],
                    batch_id=options["batch"],
                    keeps_next=options["with_next_boundaries"],
                    keep_days=options["keep_days"],
                )
                key = savepoints.ask_to_take(name, request, requester=who, reason=why, is_here=True)
                made = self._carry_out(key).savepoint
                if made is not None:
                    self._say(f"savepoint {made.pk}: batch {made.batch_id} in {made.location}")
            case "verify":
                key = savepoints.ask_to_verify(
                    name, options["key"], requester=who, reason=why, is_here=True
                )
                problems = self._carry_out(key).result["problems"]
                if problems:
                    raise CommandError("\n".join(problems), returncode=1)
                self._say("every file is as it was written")
            case "delete":
                key = savepoints.ask_to_delete(
                    name,
                    options["key"],
                    confirmation=options["confirm"],
                    requester=who,
                    reason=why,
                    is_here=True,
                )
                self._carry_out(key)
                self._say("its files are deleted")
            case "keep":
                savepoints.keep(
                    name, options["key"], days=options["days"], requester=who, reason=why
                )
            case "manifest":
                self._say(works.manifest(name, options["key"]).decode())
            case _:
                self._list(name)

    def fork(self, options: dict[str, Any]) -> None:
        rewind = Rewind(
            batch_id=self._batch(options),
            target=options["target"],
            savepoint=options["savepoint"],
            boundaries=Boundaries(options["boundaries"]),
            output=Output(options["output"]),
            output_target=options["output_target"],
            partitions=options["partitions"],
            explained=_content(options["plan"]),
        )
        ask = forks.ask_for_verdict if options["check"] else forks.ask_for_fork
        who, why = getpass.getuser(), options["reason"]
        key = ask(options["name"], rewind, requester=who, reason=why, is_here=True)
        result = self._carry_out(key).result
        verdict = result if options["check"] else result["verdict"]
        for each in verdict["findings"]:
            self._say(f"{each['outcome']}: {each['text']}")
        if options["check"]:
            if not verdict["is_possible"]:
                raise CommandError("This rewind is refused.", returncode=1)
            return
        if result["partitions"] is not None:
            rows = plural(result["compared_rows"], "row")
            dealt = plural(result["partitions"], "partition")
            self._say(f"the state has {dealt} now; {rows} compared, and none differs")
        self._say(f"\nThe fork begins with batch {result['next_batch']}. In your job:")
        self._say(works.line_to_change(result))

    def state(self, options: dict[str, Any]) -> None:
        other = options["compare_batch"]
        request = LookAtState(
            place=StatePlace(batch_id=options["batch"], savepoint=options["savepoint"]),
            other=None
            if other is None
            else StatePlace(batch_id=other, savepoint=options["compare_savepoint"]),
            operator_id=options["operator"],
            store=options["store"],
            key=options["key"],
        )
        who, why = getpass.getuser(), options["reason"]
        key = state.ask_to_look(options["name"], request, requester=who, reason=why, is_here=True)
        result = self._carry_out(key).result
        sign = "" if other is None else "- "
        for each in result["rows"]:
            self._say(sign + msgspec.json.encode([each["key"], each["value"]]).decode())
        for each in result["gained"]:
            self._say("+ " + msgspec.json.encode([each["key"], each["value"]]).decode())
        self._say(plural(result["count"] + result["gained_count"], "row"))

    def move(self, options: dict[str, Any]) -> None:
        """Writes JSON to standard output; what stays behind also goes to standard error."""
        found = works.move(options["name"], self._batch(options), options["savepoint"])
        self._say(msgspec.json.format(msgspec.json.encode(found)).decode())
        for each in found.left_behind:
            self._stderr.write(each)

    def _carry_out(self, key: int) -> QueryWork:
        row = execution.carry_out(key)
        if row.state == WorkState.FAILED:
            raise CommandError(row.problem, returncode=REFUSED)
        return row

    def _batch(self, options: dict[str, Any]) -> int:
        if options["batch"] is not None:
            return int(options["batch"])
        found = works.newest_point(options["name"], options["savepoint"])
        if found is None:
            raise Rejected(f"{options['name']} has no complete batch; give one with --batch.")
        return found

    def _list(self, name: str) -> None:
        for each in works.savepoints(name):
            kept = "deleted" if each.deleted_at else f"{size(each.size_bytes)} in {each.location}"
            damage = f"  {plural(len(each.problems), 'problem')}" if each.problems else ""
            self._say(f"{each.key}  batch {each.batch_id}  {each.label}  {kept}{damage}")

    def _say(self, text: str) -> None:
        self._stdout.write(text)


def _content(plan: Path | None) -> str:
    if plan is None:
        return ""
    try:
        return sys.stdin.read() if str(plan) == "-" else plan.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"The plan {plan} cannot be read: {error}") from error
