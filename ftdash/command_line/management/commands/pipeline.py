"""`manage.py pipeline ...`: the dashboard's actions for people without a browser, and for scripts.

Uses the same services and queries as the pages. A refusal ends in one sentence on standard error
and exit status 2; with --wait, a request that fails ends with status 1.
"""

import getpass
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import msgspec
from django.core.management.base import CommandError
from django.utils import timezone

from ftdash.checkpoints.answers import Savepoint
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.checkpoints.queries.savepoints import savepoints
from ftdash.command_line.tables import write_table
from ftdash.installed_command import InstalledCommand, explained
from ftdash.jobs.answers import RequestView
from ftdash.jobs.models import RequestPhase
from ftdash.jobs.validation import package_store
from ftdash.points.queries import LineageRun, lineage
from ftdash.points.services import disposal
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore, newest_point
from ftdash.requests import services
from ftdash.requests.storing import pipeline_named
from ftdash.runs.queries import pipelines as queries
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    RetryNow,
    RunCommand,
    StopWithSavepoint,
    TakeSavepoint,
    UndoStart,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode, SavepointFormat


def add_request_options(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", default=DEFAULT_REASON, help="kept in the audit log")
    parser.add_argument("--wait", action="store_true", help="until the request has ended")
    parser.add_argument(
        "--request-id",
        metavar="ID",
        help="repeating a request with the same id does not request twice",
    )


def add_reading(actions: Any, everywhere: ArgumentParser) -> None:
    actions.add_parser("list", parents=[everywhere], help="all pipelines")
    status = actions.add_parser(
        "status", parents=[everywhere], help="one pipeline, its requests and recovery points"
    )
    status.add_argument("name")
    lineage = actions.add_parser(
        "lineage", parents=[everywhere], help="runs and points: who was restored from what"
    )
    lineage.add_argument("name")
    savepoints = actions.add_parser(
        "savepoints",
        parents=[everywhere],
        help="list savepoints: labels, files, runs restored from them",
    )
    savepoints.add_argument("name")
    preflight = actions.add_parser(
        "preflight", parents=[everywhere], help="check whether a restore would work; starts nothing"
    )
    _add_point(preflight)


def add_requests(actions: Any, request_options: ArgumentParser) -> None:
    _add_submit(actions.add_parser("submit", parents=[request_options], help="start a pipeline"))
    savepoint = actions.add_parser(
        "savepoint", parents=[request_options], help="take a savepoint; the pipeline keeps running"
    )
    stop = actions.add_parser("stop", parents=[request_options], help="take a savepoint, then stop")
    cancel = actions.add_parser("cancel", parents=[request_options], help="stop at once")
    for parser in (savepoint, stop, cancel):
        parser.add_argument("name")
        parser.add_argument(
            "--type",
            choices=("canonical", "native"),
            default="canonical",
            help="format of the savepoint: Parquet files, or the backend's own files",
        )
        parser.add_argument("--label", default="", help="a name for the savepoint")
    stop.add_argument(
        "--drain",
        action="store_true",
        help="end event time first, so that every window fires. Only for a pipeline that will not"
        " continue: a run restored from this savepoint drops every record as late",
    )
    cancel.add_argument(
        "-s", "--with-savepoint", action="store_true", help="take a savepoint first"
    )
    retry = actions.add_parser(
        "retry",
        parents=[request_options],
        help="begin the attempt that waits for its restart delay now",
    )
    retry.add_argument("name")
    undo = actions.add_parser(
        "undo-start",
        parents=[request_options],
        help="end a run that started over, and put back the output that its start set aside",
    )
    undo.add_argument("name")
    change = actions.add_parser(
        "set", parents=[request_options], help="change settings during the run"
    )
    change.add_argument("name")
    change.add_argument("setting", nargs="+", metavar="KEY=VALUE")
    _add_restore(
        actions.add_parser("restore", parents=[request_options], help="start from a recovery point")
    )
    _add_replay(
        actions.add_parser(
            "replay-quarantine",
            parents=[request_options],
            help="start from a recovery point and process the quarantined records again, after you"
            " corrected the function that failed on them",
        )
    )
    label = actions.add_parser("label", parents=[request_options], help="rename a savepoint")
    label.add_argument("name", help="the pipeline")
    label.add_argument("path", help="directory of the savepoint")
    label.add_argument("label", help="the new name; '' removes it")
    dispose = actions.add_parser(
        "dispose", parents=[request_options], help="delete a savepoint that no run needs"
    )
    dispose.add_argument("name", help="the pipeline")
    dispose.add_argument("path", help="directory of the savepoint")
    dispose.add_argument("--confirm", metavar="SAVEPOINT", help="name of the directory, again")


def _add_submit(submit: ArgumentParser) -> None:
    submit.add_argument("name")
    submit.add_argument("--flow", help="default: the flow of the same name")
    _add_code(submit)
    submit.add_argument("--parallelism", type=int, default=1)
    submit.add_argument("--max-parallelism", type=int, default=DEFAULT_MAX_PARALLELISM)
    submit.add_argument("--master", help='Spark master, default "local[PARALLELISM]"')
    submit.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting")
    submit.add_argument(
        "--yes",
        action="store_true",
        help="start over a pipeline that has a recovery point: its state is left behind, and its"
        " output set aside",
    )
    submit.add_argument(
        "--allow-faults",
        action="store_true",
        help="let admins kill and stop its processes on purpose, to see it recover",
    )
    _add_parameters(submit)


def _add_restore(restore: ArgumentParser) -> None:
    _add_point(restore)
    restore.add_argument("--master", help='Spark master, default "local[PARALLELISM]"')
    restore.add_argument(
        "--claim-mode",
        choices=("no_claim", "claim"),
        default="no_claim",
        help="claim: the new run owns the point, and deletes it once newer ones replace it",
    )


def _add_replay(replay: ArgumentParser) -> None:
    replay.add_argument("name")
    replay.add_argument(
        "--checkpoint",
        dest="path",
        metavar="PATH",
        help="directory of a savepoint or checkpoint (default: the newest that is kept)",
    )
    replay.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="UID",
        help="only records set aside at this source; can be repeated (default: all sources)",
    )
    replay.add_argument("--parallelism", type=int)
    replay.add_argument("--master", help='Spark master, default "local[PARALLELISM]"')


def _add_point(parser: ArgumentParser) -> None:
    parser.add_argument("name")
    parser.add_argument("path", help="directory of a savepoint or checkpoint")
    parser.add_argument("--parallelism", type=int)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that changes; the pipeline keeps it, like a changed parameter",
    )
    parser.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="leave behind state of operators that the pipeline no longer has",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="an operator's uid in the point, and the one it has now",
    )
    parser.add_argument(
        "--accept-gap",
        action="append",
        default=[],
        metavar="GAP",
        help="'SOURCE SPLIT FIRST-LAST', as the preflight names it: continue without that input,"
        " which its source no longer has. Its records are lost",
    )
    _add_code(parser)
    _add_parameters(parser)


def _add_code(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--code",
        metavar="PACKAGE",
        help="the package that holds the flow: a wheel, a folder, or the sha256 of a package that"
        " was added (default: the one that the pipeline has, or an installed one)",
    )


def _add_parameters(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the flow"
    )
    parser.add_argument(
        "--forever",
        dest="parameter",
        action="append_const",
        const="forever=true",
        help="the flow's input starts again, shifted, when it ends (--parameter forever=true)",
    )


POLL_S = 0.2
GRACE_AFTER_DEADLINE = timedelta(seconds=30)
"""`reconcile` ends a request at its deadline, if a worker runs it."""

SAVEPOINTS_MAX = 1_000
STATUS_ROWS = 10  # of requests and of recovery points
DEFAULT_REASON = "asked on the command line"


class Command(InstalledCommand):
    help = "List, start and steer pipelines."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        everywhere = ArgumentParser(add_help=False)
        everywhere.add_argument("--json", action="store_true", help="answer in JSON, for scripts")
        add_reading(actions, everywhere)
        request_options = ArgumentParser(add_help=False, parents=[everywhere])
        add_request_options(request_options)
        add_requests(actions, request_options)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            match options["action"]:
                case "list":
                    rows, nothing = queries.fleet().pipelines, "No pipeline was submitted yet."
                    self._show(rows, options["json"], "Pipelines", nothing)
                case "status":
                    self._show_status(options["name"], options["json"])
                case "lineage":
                    self._show_lineage(_lineage(options["name"]), options["json"])
                case "savepoints":
                    name = options["name"]
                    title, nothing = f"Savepoints of {name}", f"{name} has no savepoint."
                    self._show(_savepoints(name), options["json"], title, nothing)
                case "preflight":
                    self._look_ahead(options)
                case _:
                    self._ask(options)
        except Rejected as refusal:
            raise CommandError(explained(refusal), returncode=2) from refusal

    def _ask(self, options: dict[str, Any]) -> None:
        self.follow(_request(options, getpass.getuser()), options)

    def follow(self, request_id: RequestId, options: dict[str, Any]) -> None:
        """Shows the request. With --wait, waits until it has ended."""
        request = _view(request_id)
        patience = request.deadline_at - timezone.now() + GRACE_AFTER_DEADLINE
        give_up_s = time.monotonic() + patience.total_seconds()
        while options["wait"] and request.is_open and time.monotonic() < give_up_s:
            time.sleep(POLL_S)
            request = _view(RequestId(request.request_id))
        self._show([request], options["json"], "", "")
        if options["wait"] and request.is_open:
            raise CommandError("It has no end yet, long after its deadline.", returncode=1)
        if request.phase in (RequestPhase.FAILED, RequestPhase.REJECTED):
            raise CommandError(request.message, returncode=1)

    def _look_ahead(self, options: dict[str, Any]) -> None:
        verdict = point_services.preflight(_restore(options))
        if options["json"]:
            self._write([{**_plain(verdict), "is_possible": verdict.is_possible}])
        else:
            title = f"A restore of {verdict.path}"
            self._show(verdict.findings, False, title, "Nothing was found.")
        if not verdict.is_possible:
            raise CommandError(f"{verdict.path} cannot be restored.", returncode=1)

    def _show_lineage(self, runs: list[LineageRun], as_json: bool) -> None:
        if as_json:
            self._write([_plain(run) for run in runs])
            return
        for run in runs:
            indent = "  " * run.depth
            origin = f" from checkpoint {run.restored_checkpoint_id}" if run.restored_from else ""
            code = f"  {run.code}" if run.code else ""
            self.stdout.write(f"{indent}{run.pipeline}/{run.run_id}{origin}  {run.state}{code}")
            for point in run.points:
                forks = f"  -> {', '.join(point.forks)}" if point.forks else ""
                if forks or point.is_available:
                    text = f"{point.kind.lower()} {point.checkpoint_id}  {point.path}{forks}"
                    self.stdout.write(f"{indent}  {text}")

    def _show_status(self, name: str, as_json: bool) -> None:
        """As JSON, writes one object that contains the newest requests and recovery points."""
        if queries.pipeline_page(name) is None:
            raise Rejected(f"There is no pipeline {name!r}; see `manage.py pipeline list`.")
        (summary,) = [each for each in queries.fleet().pipelines if each.name == name]
        requests = queries.requests(name, limit=STATUS_ROWS)
        points = checkpoint_queries.recovery_points(name, limit=STATUS_ROWS)
        if as_json:
            inside = {
                "requests": [_plain(each) for each in requests],
                "recovery_points": [_plain(each) for each in points],
            }
            self._write({**_plain(summary), **inside})
            return
        self._show([summary], False, "", "")
        self._show(points, False, "Recovery points", "It has no point to be restored from.")
        self._show(requests, False, "Requests", "No request was made yet.")

    def _show(self, rows: Sequence[Any], as_json: bool, title: str, nothing: str) -> None:
        if as_json:
            self._write([_plain(row) for row in rows])
        else:
            write_table(self.stdout, rows, title, nothing)

    def _write(self, value: object) -> None:
        self.stdout.write(msgspec.json.encode(value).decode())


def _request(options: dict[str, Any], requester: str) -> RequestId:
    name = options["name"]
    if command := _command(options):
        reason, request_id = options["reason"], options["request_id"]
        return services.ask(name, command, who=requester, why=reason, request_id=request_id)
    who = {
        "requester": requester,
        "reason": options["reason"],
        "request_id": options["request_id"],
    }
    match options["action"]:
        case "submit":
            services.check_start_over(
                name, is_confirmed=options["yes"], request_id=options["request_id"]
            )
            code = _code(options)
            return services.submit_pipeline(
                name=name,
                flow=options["flow"] or _only_flow(code) or name,
                parallelism=options["parallelism"],
                max_parallelism=options["max_parallelism"],
                parameters=_pairs(options["parameter"], "--parameter"),
                settings=_pairs(options["set"], "--set"),
                master=options["master"],
                allows_faults=options["allow_faults"],
                code=code,
                **who,
            )
        case "label":
            given = {"path": options["path"], "label": options["label"]}
            return disposal.label_savepoint(pipeline=name, **given, **who)
        case "dispose":
            _check_confirmed(options["path"], options["confirm"])
            return point_services.dispose(pipeline=name, path=options["path"], **who)
        case "replay-quarantine":
            wanted = Restore(
                pipeline=name,
                path=options["path"] or newest_point(name),
                parallelism=options["parallelism"],
                replays=options["source"],
            )
            return point_services.restore(wanted, master=options["master"], **who)
        case _:
            claim_mode = ClaimMode(options["claim_mode"].upper())
            return point_services.restore(
                _restore(options), claim_mode=claim_mode, master=options["master"], **who
            )


def _command(options: dict[str, Any]) -> RunCommand | None:
    """Returns None if the action looks at a point or starts a run."""
    match options["action"]:
        case "savepoint":
            return TakeSavepoint(**_of_savepoint(options))
        case "stop":
            return StopWithSavepoint(drain=options["drain"], **_of_savepoint(options))
        case "set":
            return ChangeSettings(settings=_pairs(options["setting"], "set"))
        case "retry":
            return RetryNow()
        case "undo-start":
            return UndoStart()
        case "cancel" if options["with_savepoint"]:
            return CancelWithSavepoint(**_of_savepoint(options))
        case "cancel":
            return Cancel()
        case _:
            return None


def _restore(options: dict[str, Any]) -> Restore:
    return Restore(
        pipeline=options["name"],
        path=options["path"],
        parallelism=options["parallelism"],
        parameters=_pairs(options["parameter"], "--parameter"),
        settings=_pairs(options["set"], "--set"),
        renamed=_pairs(options["map"], "--map"),
        accepted_gaps=options["accept_gap"],
        allow_non_restored_state=options["allow_non_restored_state"],
        code=_code(options),
    )


def _code(options: dict[str, Any]) -> ShippedCode | None:
    """Returns the package that --code names, which is in the store afterwards."""
    return package_store().find(options["code"]) if options["code"] else None


def _only_flow(code: ShippedCode | None) -> str | None:
    """Returns the name of the flow if the package declares exactly one."""
    declared = [] if code is None else list(package_store().wheel(code).flows)
    return declared[0] if len(declared) == 1 else None


def _of_savepoint(options: dict[str, Any]) -> dict[str, Any]:
    return {"format": SavepointFormat(options["type"].upper()), "label": options["label"]}


def _check_confirmed(path: str, confirmation: str | None) -> None:
    """Raises Rejected unless --confirm gives the savepoint's name: disposal is irreversible."""
    name = path.rstrip("/").rpartition("/")[2]
    if confirmation != name:
        raise Rejected(
            f"Disposing of {path} cannot be taken back; confirm it with --confirm {name}."
        )


def _pairs(given: list[str], option: str) -> dict[str, str]:
    for pair in given:
        if "=" not in pair:
            raise Rejected(f"{option} {pair!r} has no '='; write {option} NAME=VALUE.")
    return dict(pair.split("=", 1) for pair in given)


def _savepoints(name: str) -> list[Savepoint]:
    pipeline_named(name)
    return savepoints(name, per_page=SAVEPOINTS_MAX).rows


def _lineage(name: str) -> list[LineageRun]:
    runs = lineage(name)
    if runs is None:
        raise Rejected(f"There is no pipeline {name!r}; see `manage.py pipeline list`.")
    return runs


def _view(request_id: RequestId) -> RequestView:
    view = queries.request(request_id)
    if view is None:
        raise Rejected(f"The request {request_id} is gone.")
    return view


def _plain(value: Any) -> dict[str, Any]:
    return {key: msgspec.to_builtins(item) for key, item in asdict(value).items()}
