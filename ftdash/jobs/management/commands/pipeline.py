"""`manage.py pipeline ...`: the dashboard's actions for people without a browser, and for scripts.

Asks the same services and queries as the pages. What is refused ends in one sentence on standard
error and exit status 2; with --wait, a request that fails ends with status 1.
"""

import getpass
import time
from argparse import ArgumentParser
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from ftdash.checkpoints import queries as checkpoint_queries
from ftdash.jobs import queries, services
from ftdash.jobs.answers import PipelinePage, RequestView
from ftdash.jobs.models import RequestPhase
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM

POLL_S = 0.2
GRACE_AFTER_DEADLINE = timedelta(seconds=30)
"""Reconcile ends a request at its deadline, if a worker is there to run it."""

DEFAULT_REASON = "asked on the command line"


class Command(BaseCommand):
    help = "List, start and steer pipelines."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        everywhere = ArgumentParser(add_help=False)
        everywhere.add_argument("--json", action="store_true", help="answer in JSON, for scripts")
        _add_reading(actions, everywhere)
        asking = ArgumentParser(add_help=False, parents=[everywhere])
        asking.add_argument("--reason", default=DEFAULT_REASON, help="kept in the audit log")
        asking.add_argument("--wait", action="store_true", help="until the request has ended")
        _add_asking(actions, asking)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["action"] == "list":
                self._show(_fleet(), options["json"])
            elif options["action"] == "status":
                self._show(_status(options["name"]), options["json"])
            else:
                self._ask(options)
        except Rejected as refusal:
            raise CommandError(str(refusal), returncode=2) from refusal

    def _ask(self, options: dict[str, Any]) -> None:
        request = _view(_request(options, getpass.getuser()))
        give_up_at = request.deadline_at + GRACE_AFTER_DEADLINE
        while options["wait"] and request.is_open and timezone.now() < give_up_at:
            time.sleep(POLL_S)
            request = _view(RequestId(request.request_id))
        self._show([_plain(request)], options["json"])
        if options["wait"] and request.is_open:
            raise CommandError("It has no end yet, long after its deadline.", returncode=1)
        if request.phase in (RequestPhase.FAILED, RequestPhase.REJECTED):
            raise CommandError(request.message, returncode=1)

    def _show(self, rows: list[dict[str, Any]], as_json: bool) -> None:
        if as_json:
            self.stdout.write(msgspec.json.encode(rows).decode())
            return
        for row in rows:
            filled = {key: value for key, value in row.items() if value not in (None, "", [], {})}
            self.stdout.write("  ".join(f"{key}={value}" for key, value in filled.items()))


def _add_reading(actions: Any, everywhere: ArgumentParser) -> None:
    actions.add_parser("list", parents=[everywhere], help="all pipelines")
    status = actions.add_parser(
        "status", parents=[everywhere], help="one pipeline, its requests and recovery points"
    )
    status.add_argument("name")


def _add_asking(actions: Any, asking: ArgumentParser) -> None:
    submit = actions.add_parser("submit", parents=[asking], help="start a pipeline from a flow")
    submit.add_argument("name")
    submit.add_argument("--flow", help="default: the flow of the same name")
    submit.add_argument("--parallelism", type=int, default=1)
    submit.add_argument("--max-parallelism", type=int, default=DEFAULT_MAX_PARALLELISM)
    submit.add_argument("--master", help='Spark master, default "local[PARALLELISM]"')
    submit.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting")
    _add_parameters(submit)
    texts = {
        "savepoint": "take a savepoint; the pipeline goes on",
        "stop": "take a savepoint and end",
        "cancel": "end at once",
    }
    for name, text in texts.items():
        actions.add_parser(name, parents=[asking], help=text).add_argument("name")
    restore = actions.add_parser("restore", parents=[asking], help="start from a recovery point")
    restore.add_argument("name")
    restore.add_argument("path", help="directory of a savepoint or checkpoint")
    restore.add_argument("--parallelism", type=int)
    restore.add_argument("--master", help='Spark master, default "local[PARALLELISM]"')
    _add_parameters(restore)


def _add_parameters(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE", help="of the flow"
    )


def _request(options: dict[str, Any], requester: str) -> RequestId:
    name, reason = options["name"], options["reason"]
    asked = {"pipeline": name, "requester": requester, "reason": reason}
    match options["action"]:
        case "submit":
            return services.submit_pipeline(
                name=name,
                flow=options["flow"] or name,
                requester=requester,
                reason=reason,
                parallelism=options["parallelism"],
                max_parallelism=options["max_parallelism"],
                parameters=_pairs(options["parameter"], "--parameter"),
                settings=_pairs(options["set"], "--set"),
                master=options["master"],
            )
        case "savepoint":
            return services.request_savepoint(**asked)
        case "stop":
            return services.stop_with_savepoint(**asked)
        case "cancel":
            return services.cancel(**asked)
        case _:
            return services.restore(
                **asked,
                path=options["path"],
                parallelism=options["parallelism"],
                parameters=_pairs(options["parameter"], "--parameter"),
                master=options["master"],
            )


def _pairs(given: list[str], option: str) -> dict[str, str]:
    for pair in given:
        if "=" not in pair:
            raise Rejected(f"{option} {pair!r} has no '='; write {option} NAME=VALUE.")
    return dict(pair.split("=", 1) for pair in given)


def _fleet() -> list[dict[str, Any]]:
    return [_plain(summary) for summary in queries.fleet().pipelines]


def _status(name: str) -> list[dict[str, Any]]:
    page: PipelinePage | None = queries.pipeline_page(name)
    if page is None:
        raise Rejected(f"There is no pipeline {name!r}; see `manage.py pipeline list`.")
    (summary,) = [each for each in queries.fleet().pipelines if each.name == name]
    return [
        {
            **_plain(summary),
            "requests": [_plain(each) for each in queries.requests(name, limit=10)],
            "recovery_points": [
                _plain(each) for each in checkpoint_queries.recovery_points(name, limit=10)
            ],
        }
    ]


def _view(request_id: RequestId) -> RequestView:
    view = queries.request(request_id)
    if view is None:
        raise Rejected(f"The request {request_id} is gone.")
    return view


def _plain(value: Any) -> dict[str, Any]:
    return {key: msgspec.to_builtins(item) for key, item in asdict(value).items()}
