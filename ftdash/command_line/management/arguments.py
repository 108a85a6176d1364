"""The arguments of `manage.py pipeline`: its actions and their options. Reads nothing."""

from argparse import ArgumentParser
from typing import Any

from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM


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


def add_asking(actions: Any, asking: ArgumentParser) -> None:
    _add_submit(actions.add_parser("submit", parents=[asking], help="start a pipeline"))
    savepoint = actions.add_parser(
        "savepoint", parents=[asking], help="take a savepoint; the pipeline goes on"
    )
    stop = actions.add_parser("stop", parents=[asking], help="take a savepoint, then stop")
    cancel = actions.add_parser("cancel", parents=[asking], help="stop at once")
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
        " go on: a run restored from this savepoint drops every record as late",
    )
    cancel.add_argument(
        "-s", "--with-savepoint", action="store_true", help="take a savepoint first"
    )
    change = actions.add_parser(
        "set", parents=[asking], help="change settings while the run goes on"
    )
    change.add_argument("name")
    change.add_argument("setting", nargs="+", metavar="KEY=VALUE")
    _add_restore(
        actions.add_parser("restore", parents=[asking], help="start from a recovery point")
    )
    _add_replay(
        actions.add_parser(
            "replay-quarantine",
            parents=[asking],
            help="start from a recovery point and process the quarantined records again, after you"
            " corrected the function that failed on them",
        )
    )
    label = actions.add_parser("label", parents=[asking], help="rename a savepoint")
    label.add_argument("name", help="the pipeline")
    label.add_argument("path", help="directory of the savepoint")
    label.add_argument("label", help="the new name; '' removes it")
    dispose = actions.add_parser(
        "dispose", parents=[asking], help="delete a savepoint that no run needs"
    )
    dispose.add_argument("name", help="the pipeline")
    dispose.add_argument("path", help="directory of the savepoint")
    dispose.add_argument("--confirm", metavar="SAVEPOINT", help="name of the directory, again")


def _add_submit(submit: ArgumentParser) -> None:
    submit.add_argument("name")
    submit.add_argument("--flow", help="default: the flow of the same name")
    submit.add_argument("--parallelism", type=int, default=1)
    submit.add_argument("--max-parallelism", type=int, default=DEFAULT_MAX_PARALLELISM)
    submit.add_argument("--master", help='Spark master, default "local[PARALLELISM]"')
    submit.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting")
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
        "--allow-non-restored-state",
        action="store_true",
        help="leave behind state of operators that the pipeline does not have any more",
    )
    _add_parameters(parser)


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
