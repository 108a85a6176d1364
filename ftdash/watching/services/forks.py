"""Rewinds a watched query into a fork: the verdict first, then a copy in a new directory.

The fork lies within `FTDASH_WATCH_ROOTS`, apart from the directory of every watched query, and has
a query id of its own. The verdict is given again before anything is written. The query itself
continues, or stays as it is. Spark may deal the state of the fork to other partitions, in a process
of its own. Every row is then compared, and the fork is removed if one differs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from django.conf import settings

from ftdash.watching.models import QueryWork, WatchedQuery, WorkKind
from ftdash.watching.reading import check_place, place_of
from ftdash.watching.services import savepoints, work
from ftdash.watching.services.state import answer_of_spark
from ftdash.watching.work_requests import Dealt, Forked, Rewind, Said, SavedVerdict
from pipelines.domain.errors import Rejected
from pipelines.domain.run import scheme_of
from pipelines.storage.roots import StorageRoots
from pipelines.storage.trees import Tree, are_nested, check_is_apart, check_is_free, tree_at
from pipelines.structured import preflight as judging
from pipelines.structured.directory import read_tree
from pipelines.structured.fork import ForkRequest, begin_output, fork, rewind_output
from pipelines.structured.preflight import Output, Question, inputs_after, plan_of
from pipelines.structured.query import QueryDirectory
from pipelines.structured.recovery import recovery_points
from pipelines.structured.repartition import PARTITIONS_MAX

REPARTITION_LIMIT_S = 6 * 3600
TOO_LATE = (
    f"Spark did not repartition the state within {REPARTITION_LIMIT_S // 3600} hours, and the fork"
    " is removed; call `fork_repartitioned` of `pipelines.spark.structured` on a cluster."
)


@dataclass(frozen=True, slots=True)
class _Trees:
    source: Tree
    query: QueryDirectory
    target: Tree
    output: Tree | None
    output_target: Tree | None


def ask_for_verdict(
    name: str, rewind: Rewind, *, requester: str, reason: str, is_here: bool = False
) -> int:
    """Returns the key of the work, which changes nothing. Raises Rejected for unusable places."""
    return _ask(
        name,
        rewind,
        WorkKind.PREFLIGHT,
        "asked for a verdict on a rewind of",
        requester=requester,
        reason=reason,
        is_here=is_here,
    )


def ask_for_fork(
    name: str, rewind: Rewind, *, requester: str, reason: str, is_here: bool = False
) -> int:
    """Returns the key of the work. Raises Rejected if the places cannot be used."""
    return _ask(
        name,
        rewind,
        WorkKind.FORK,
        "rewound into a fork",
        requester=requester,
        reason=reason,
        is_here=is_here,
    )


def ask_as_judged(name: str, verdict_key: int, *, requester: str, reason: str) -> int:
    """Carry out exactly the rewind that a verdict judged. Raises Rejected if that refused it."""
    query = work.watched_row(name)
    judged = QueryWork.objects.filter(query=query, pk=verdict_key, kind=WorkKind.PREFLIGHT).first()
    if judged is None or not judged.result.get("is_possible"):
        raise Rejected("The preflight has not found this rewind possible; ask for another one.")
    rewind = msgspec.convert(judged.asked, Rewind)
    return ask_for_fork(name, rewind, requester=requester, reason=reason)


def _ask(
    name: str,
    rewind: Rewind,
    kind: WorkKind,
    what: str,
    *,
    requester: str,
    reason: str,
    is_here: bool,
) -> int:
    query = work.watched_row(name)
    places = {each: place_of(getattr(rewind, each)) for each in ("target", "output_target")}
    rewind = msgspec.structs.replace(rewind, **places)
    saved = None if rewind.savepoint is None else work.savepoint_row(query, rewind.savepoint)
    if saved is None and not query.directory:
        raise Rejected(
            f'The checkpoint directory of {name} is not known; give it under "Watch a query" with'
            " the same name, or rewind from a savepoint."
        )
    if (rewind.output is Output.REWOUND or rewind.output_target) and not query.output:
        raise Rejected(
            f'The output of {name} is not known; give it under "Watch a query" with the same name.'
        )
    if rewind.output is Output.REWOUND and not rewind.output_target:
        raise Rejected("Give the place for the rewound output.")
    if rewind.output_target and rewind.output not in (Output.REWOUND, Output.NEW):
        raise Rejected("The output stays where it is; give no place for another one.")
    for place in filter(None, (rewind.target, rewind.output_target)):
        check_new_place(place)
    if rewind.output_target and are_nested(_place(rewind.target), _place(rewind.output_target)):
        raise Rejected("The fork and its output lie within each other; give two places.")
    if rewind.partitions is not None and not 1 <= rewind.partitions <= PARTITIONS_MAX:
        raise Rejected(f"Give 1 to {PARTITIONS_MAX:,} state partitions, not {rewind.partitions:,}.")
    if rewind.explained:
        plan_of(rewind.explained.encode())
    origin = f"savepoint {saved.label}" if saved else f"batch {rewind.batch_id}"
    dealt = "" if rewind.partitions is None else f", with {rewind.partitions} state partitions"
    return work.ask(
        query,
        kind,
        what=what,
        work_request=rewind,
        requester=requester,
        reason=reason,
        detail=f"{origin} into {rewind.target}{dealt}",
        savepoint=saved,
        is_here=is_here,
    )


def check_new_place(place: str) -> None:
    """Raises Rejected unless it is below a root, and apart from everything that is watched."""
    check_place(place, settings.WATCH_ROOTS)
    roots = StorageRoots(settings.WATCH_ROOTS)
    is_object = bool(scheme_of(place))
    if roots.is_root(roots.prefix(place) if is_object else roots.directory(place)):
        raise Rejected(f"{place} is a root of FTDASH_WATCH_ROOTS; choose a directory below it.")
    known = WatchedQuery.objects.filter(removed_at=None)
    for name, *places in known.values_list("name", "directory", "output", "event_log"):
        for other in filter(None, places):
            if are_nested(_place(place), _place(other)):
                raise Rejected(
                    f"{place} and {other}, which belongs to the watched query {name}, lie within"
                    " each other; choose another place."
                )


def _place(location: str) -> str:
    """Returns the location as trees write it."""
    return location.rstrip("/") if scheme_of(location) else str(Path(location).resolve())


def judge(row: QueryWork, progress: work.Progress) -> None:
    rewind = msgspec.convert(row.asked, Rewind)
    progress.step("reads every file of the batch")
    work.end(row.pk, result=_verdict(rewind, _trees(row, rewind)))


def carry_out(row: QueryWork, progress: work.Progress) -> None:
    """1. Judge. 2. Copy the output, or begin a new one. 3. Copy the checkpoint, whose `metadata`
    comes last. 4. If asked to, deal its state to other partitions."""
    rewind = msgspec.convert(row.asked, Rewind)
    progress.step("reads every file of the batch")
    trees = _trees(row, rewind)
    verdict = _verdict(rewind, trees)
    if not verdict.is_possible:
        first = next(each.text for each in verdict.findings if each.outcome == "refused")
        raise Rejected(f"The preflight refuses this rewind: {first}")
    new = [each for each in (trees.target, trees.output_target) if each is not None]
    progress.step("copies", writes_to=[each.location for each in new])
    if trees.output is not None and trees.output_target is not None:
        if rewind.output is Output.REWOUND:
            rewind_output(trees.query, trees.output, trees.output_target, rewind.batch_id)
        else:  # Spark takes one more batch to deal the state
            newest = rewind.batch_id + (rewind.partitions is not None)
            begin_output(
                trees.query, trees.output, trees.output_target, rewind.batch_id, newest=newest
            )
    try:
        request = ForkRequest(batch_id=rewind.batch_id, boundaries=rewind.boundaries)
        made = fork(trees.source, trees.query, trees.target, request, progress.files)
        forked = Forked(
            location=made.location,
            query_id=made.query_id,
            next_batch=made.next_batch,
            file_count=made.file_count,
            size_bytes=made.size_bytes,
            output_target=trees.output_target.location if trees.output_target else "",
            verdict=verdict,
        )
        if rewind.partitions is not None:
            forked = _repartitioned(forked, trees.target, rewind.partitions, progress)
    except BaseException:
        if trees.output_target is not None:
            trees.output_target.delete_all()
        raise
    work.end(row.pk, result=forked)


def _repartitioned(
    forked: Forked, target: Tree, partitions: int, progress: work.Progress
) -> Forked:
    """Raises Rejected if Spark refuses, or if a row differs; then the fork is removed."""
    batch_id = forked.next_batch  # Spark uses it for the repartition
    question = {
        "location": target.location,
        "batch_id": batch_id - 1,
        "partitions": partitions,
    }
    try:
        progress.step(f"Spark deals the state to {partitions} partitions and compares every row")
        dealt = answer_of_spark(
            settings.REPARTITION_COMMAND,
            question,
            Dealt,
            limit_s=REPARTITION_LIMIT_S,
            failed="The state was not repartitioned, and the fork is removed",
            late=TOO_LATE,
        )
        after = read_tree(target)
        point = next((p for p in recovery_points(after) if p.batch_id == batch_id), None)
        if point is None or not point.is_complete:
            raise Rejected(
                "Spark's repartition left state that cannot be loaded, and the fork is removed:"
                f" {point.problems[0] if point else f'batch {batch_id} is not committed.'}"
            )
    except BaseException:
        target.delete_all()
        raise
    return msgspec.structs.replace(
        forked,
        next_batch=batch_id + 1,
        file_count=after.file_count,
        size_bytes=after.size_bytes,
        partitions=partitions,
        compared_rows=dealt.compared_rows,
    )


def _trees(row: QueryWork, rewind: Rewind) -> _Trees:
    """Raises Rejected if a place cannot be used any more."""
    roots = list(settings.WATCH_ROOTS)
    query = row.query
    output = tree_at(query.output, roots) if query.output else None
    if rewind.savepoint is None:
        source, directory = savepoints.opened(query, output=query.output)
    else:
        saved = work.savepoint_row(query, rewind.savepoint)
        source = tree_at(saved.location, [settings.WATCH_SAVEPOINTS])
        directory = read_tree(source, output)
    for place in filter(None, (rewind.target, rewind.output_target)):
        check_new_place(place)
    output_target = tree_at(rewind.output_target, roots) if rewind.output_target else None
    if output is not None and output_target is not None:
        check_is_apart(output_target, output)
        check_is_free(output_target)
    return _Trees(source, directory, tree_at(rewind.target, roots), output, output_target)


def _verdict(rewind: Rewind, trees: _Trees) -> SavedVerdict:
    question = Question(
        request=ForkRequest(batch_id=rewind.batch_id, boundaries=rewind.boundaries),
        output=rewind.output,
        partitions=rewind.partitions,
        begins_output=bool(rewind.output_target),
        plan=plan_of(rewind.explained.encode()) if rewind.explained else None,
        missing_inputs=_missing_inputs(trees, rewind.batch_id),
    )
    found = judging.preflight(trees.source, trees.query, trees.target, question)
    return SavedVerdict(
        is_possible=found.is_possible,
        findings=[
            Said(check=each.check.value, outcome=each.outcome.value, text=each.text)
            for each in found.findings
        ],
    )


def _missing_inputs(trees: _Trees, batch_id: int) -> tuple[str, ...] | None:
    """Returns None if some inputs lie where this server may not look."""
    roots = StorageRoots(settings.WATCH_ROOTS)
    missing = []
    for address, path in _local(inputs_after(trees.source, trees.query, batch_id)):
        try:
            if not roots.directory(path).exists():
                missing.append(address)
        except Rejected:
            return None
    return tuple(missing)


def _local(addresses: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields each address with its path; that of an object store is outside of all roots."""
    for address in addresses:
        parts = urlsplit(address)
        is_file = parts.scheme in ("file", "")
        yield address, unquote(parts.path) if is_file else f"{parts.scheme}://{parts.netloc}"
