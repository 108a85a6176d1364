"""The verdict on a rewind before anything is copied: every objection, and notes worth knowing.

It decides by the bytes of the batch, the doctor's findings, and what the caller says about the new
code (`PlanDescription`), the sources and the output. It says what it could not check. It changes
nothing, and the fork verifies again.

The helper `explain` of the listener's package runs where the author's code and Spark are. It writes
the description that Spark itself would write at the first batch. This module reads that file and
runs nothing of it.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.storage.trees import Tree, check_is_apart, check_is_free
from pipelines.structured.doctor import examine
from pipelines.structured.findings import Finding, Kind
from pipelines.structured.fork import Boundaries, ForkRequest
from pipelines.structured.formats import Damaged, SourceKind, SourceOffset, StateSchema, schema_of
from pipelines.structured.logs import read_log
from pipelines.structured.query import Batch, Operator, QueryDirectory
from pipelines.structured.recovery import is_of_batch, verify
from pipelines.structured.repartition import refusals
from pipelines.structured.savepoints import MANIFEST, committed_batch, verify_savepoint

DAMAGES_NAMED_MAX = 5


class Check(StrEnum):
    """The subjects of the check, in this order."""

    POINT = "point"
    FILES = "files"
    TIMELINE = "timeline"
    STORE = "store"
    PARTITIONS = "partitions"
    SOURCES = "sources"
    BOUNDARIES = "boundaries"
    CODE = "code"
    SINK = "sink"
    TARGET = "target"


class Outcome(StrEnum):
    FINE = "fine"
    NOTE = "note"  # possible, but a person should know
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Objection:
    check: Check
    outcome: Outcome
    text: str  # one or two sentences


@dataclass(frozen=True, slots=True)
class ForkVerdict:
    """`findings` are in the order of `Check`."""

    findings: tuple[Objection, ...]

    @property
    def is_possible(self) -> bool:
        return all(each.outcome is not Outcome.REFUSED for each in self.findings)


class Output(StrEnum):
    """Where the fork writes, with regard to the rows that were written after the batch."""

    NEW = "new"  # to another place
    REWOUND = "rewound"  # to a copy of the output as it was at the batch
    HANDLED = "handled"  # to the same place; you handle the rows that are there
    SAME_FILES = "same files"  # to the same place of a file sink, with its log


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOperator:
    """`schemas` maps stores to schemas; only the schemas that you give are compared."""

    name: str
    schemas: Mapping[str, StateSchema] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDescription:
    """The new code, as you describe it.

    Operators and sources are in the order of Spark's ids. None means not known.
    """

    sources: tuple[SourceKind, ...] | None = None
    operators: tuple[PlannedOperator, ...] | None = None
    shuffle_partitions: int | None = None
    store_class: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`source_bounds` are those of `doctor.Observed`.

    `missing_inputs` are the addresses of input files that are gone; None means not checked.
    `partitions` is the number of partitions that the fork's state is dealt to. With
    `begins_output`, a new output gets the empty log that a file sink needs there.
    """

    request: ForkRequest
    output: Output
    partitions: int | None = None
    begins_output: bool = False
    plan: PlanDescription | None = None
    source_bounds: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    missing_inputs: tuple[str, ...] | None = None


def preflight(source: Tree, query: QueryDirectory, target: Tree, question: Question) -> ForkVerdict:
    """Reads every file of the batch. Raises Retryable if the storage fails."""
    try:
        batch = committed_batch(query, question.request.batch_id)
    except Rejected as refusal:
        return ForkVerdict((Objection(Check.POINT, Outcome.REFUSED, str(refusal)),))
    known = examine(query)
    looks = (
        _point(batch),
        _files(source, query, batch, known),
        _timeline(known, batch),
        _store(query, batch, question.plan),
        _partitions(query, batch, question, known),
        _sources(source, query, batch, question),
        _boundaries(query, batch, question.request),
        _code(source, query, batch, question.plan),
        _sink(query, batch, question),
        _target(source, target),
    )
    return ForkVerdict(tuple(each for look in looks for each in look))


def _point(batch: Batch) -> Iterator[Objection]:
    text = f"Batch {batch.batch_id} is committed, and its offsets are kept."
    yield Objection(Check.POINT, Outcome.FINE, text)


def _files(
    source: Tree, query: QueryDirectory, batch: Batch, known: Iterable[Finding]
) -> Iterator[Objection]:
    if source.read(MANIFEST) is not None:
        for text in verify_savepoint(source)[:DAMAGES_NAMED_MAX]:
            yield Objection(Check.FILES, Outcome.REFUSED, text)
    found = verify(source, query, batch)
    texts = [each.text for each in known if each.kind is Kind.PARTITION_MISSING]
    texts += [problem.text for problem in found.problems]
    for operator in query.operators:
        texts += [
            f"{each.folder} has no version {batch.batch_id + 1}."
            for each in operator.partitions
            if is_of_batch(each, batch) and batch.batch_id + 1 not in each.files
        ]
    for text in texts[:DAMAGES_NAMED_MAX]:
        yield Objection(Check.FILES, Outcome.REFUSED, text)
    if len(texts) > DAMAGES_NAMED_MAX:
        text = f"{len(texts) - DAMAGES_NAMED_MAX} more files are damaged or missing."
        yield Objection(Check.FILES, Outcome.REFUSED, text)
    if not texts:
        text = f"{len(found.paths)} files of {found.read_bytes:,} bytes are as written."
        yield Objection(Check.FILES, Outcome.FINE, text)


def _timeline(known: Iterable[Finding], batch: Batch) -> Iterator[Objection]:
    for finding in known:
        if finding.kind is Kind.MIXED_TIMELINES:
            is_before = finding.batch_id is not None and finding.batch_id > batch.batch_id
            outcome = Outcome.NOTE if is_before else Outcome.REFUSED
            yield Objection(Check.TIMELINE, outcome, finding.text)
        elif finding.kind is Kind.ABANDONED_STATE:
            text = f"{finding.text} The fork leaves that state behind."
            yield Objection(Check.TIMELINE, Outcome.NOTE, text)


def _store(
    query: QueryDirectory, batch: Batch, plan: PlanDescription | None
) -> Iterator[Objection]:
    if not query.operators:
        return
    kept = batch.store_class.rpartition(".")[2]
    planned = (plan.store_class if plan else "").rpartition(".")[2]
    if planned and planned != kept:
        text = f"The checkpoint has {kept}; your setting {planned} has no effect on the fork."
        yield Objection(Check.STORE, Outcome.NOTE, text)
    text = f"The state is of the store {query.store}, and the fork keeps it."
    yield Objection(Check.STORE, Outcome.FINE, text)


def _partitions(
    query: QueryDirectory, batch: Batch, question: Question, known: Iterable[Finding]
) -> Iterator[Objection]:
    for finding in known:
        if finding.kind is Kind.PARTITIONS_DIFFER:
            yield Objection(Check.PARTITIONS, Outcome.REFUSED, finding.text)
    if question.partitions is not None:
        yield from _repartition(query, batch, question, question.partitions)
        return
    plan, kept = question.plan, batch.shuffle_partitions
    planned = plan.shuffle_partitions if plan else None
    if query.operators and planned is not None and planned != kept:
        text = f"The state has {kept} partitions; your setting {planned} has no effect on the fork."
        yield Objection(Check.PARTITIONS, Outcome.NOTE, text)


def _repartition(
    query: QueryDirectory, batch: Batch, question: Question, wanted: int
) -> Iterator[Objection]:
    texts = refusals(
        query,
        batch,
        wanted,
        keeps_boundaries=question.request.boundaries is Boundaries.SAME,
        keeps_sink_log=question.output in (Output.REWOUND, Output.SAME_FILES),
    )
    refused = [Objection(Check.PARTITIONS, Outcome.REFUSED, text) for text in texts]
    text = (
        f"Spark deals the state to {wanted} partitions instead of {batch.shuffle_partitions}, and"
        f" takes batch {batch.batch_id + 1} of the fork for it. Spark calls this experimental."
        " Every row is compared before and after; if one differs, the fork is removed."
    )
    yield from refused or [Objection(Check.PARTITIONS, Outcome.NOTE, text)]


def _sources(
    source: Tree, query: QueryDirectory, batch: Batch, question: Question
) -> Iterator[Objection]:
    for offset in batch.sources:
        name = f"Source {offset.index}"
        bounds = question.source_bounds.get(offset.index)
        if offset.kind is SourceKind.FILE:
            yield _file_source(source, query, offset, question)
        elif bounds is None:
            if offset.kind is SourceKind.KAFKA:
                text = f"{name}: it was not checked if Kafka still has what comes after the batch."
                yield Objection(Check.SOURCES, Outcome.NOTE, text)
            elif offset.kind is SourceKind.OTHER:
                text = f"{name} is of a kind whose offsets cannot be judged: {offset.text[:80]}"
                yield Objection(Check.SOURCES, Outcome.NOTE, text)
        else:
            lost = [
                f"{key} begins at {bounds[key][0]}, and the batch needs {position}"
                for key, position in offset.positions.items()
                if key in bounds and position < bounds[key][0]
            ]
            outcome = Outcome.REFUSED if lost else Outcome.FINE
            text = f"{name} no longer has everything: {'; '.join(lost)}."
            fine = f"{name} still has everything after the batch."
            yield Objection(Check.SOURCES, outcome, text if lost else fine)


def _file_source(
    source: Tree, query: QueryDirectory, offset: SourceOffset, question: Question
) -> Objection:
    name, log_offset = f"Source {offset.index}", offset.positions["logOffset"]
    log = query.log_of(offset)
    if log is None or log.newest is None or log.newest < log_offset:
        text = f"{name} has no log that reaches to the batch."
        return Objection(Check.SOURCES, Outcome.REFUSED, text)
    try:
        entries = [e for e in read_log(source, log).entries() if e.batch_id > log_offset]
    except Rejected as refusal:
        return Objection(Check.SOURCES, Outcome.REFUSED, str(refusal))
    if question.missing_inputs is None:
        text = f"{name} reads {len(entries)} files again; it was not checked if they are there."
        return Objection(Check.SOURCES, Outcome.NOTE if entries else Outcome.FINE, text)
    gone = [entry.path for entry in entries if entry.path in question.missing_inputs]
    if gone:
        text = f"{name}: {len(gone)} files after the batch are gone, {gone[0]} among them."
        return Objection(Check.SOURCES, Outcome.REFUSED, text)
    text = f"{name}: all {len(entries)} files after the batch are still there."
    return Objection(Check.SOURCES, Outcome.FINE, text)


def inputs_after(source: Tree, query: QueryDirectory, batch_id: int) -> tuple[str, ...]:
    """Returns the addresses of the files after the batch that a fork's file sources read again.

    It leaves out a source whose log cannot be read; the preflight names that log.
    """
    batch = query.by_id.get(batch_id)
    found: list[str] = []
    for offset in batch.sources if batch else ():
        log = query.log_of(offset)
        if offset.kind is not SourceKind.FILE or log is None:
            continue
        with suppress(Rejected):
            entries = read_log(source, log).entries()
            found += [e.path for e in entries if e.batch_id > offset.positions["logOffset"]]
    return tuple(found)


def _boundaries(query: QueryDirectory, batch: Batch, request: ForkRequest) -> Iterator[Objection]:
    following = query.by_id.get(batch.batch_id + 1)
    if request.boundaries is Boundaries.NEW:
        text = (
            f"Batch {batch.batch_id + 1} takes what the sources offer then; a sink that goes by"
            " batch id sees other rows under the same id."
        )
        yield Objection(Check.BOUNDARIES, Outcome.NOTE, text)
    elif following is None or following.plan is None:
        text = f"Batch {batch.batch_id + 1} was not planned, so it has no boundaries to keep."
        yield Objection(Check.BOUNDARIES, Outcome.REFUSED, text)
    else:
        text = f"Batch {batch.batch_id + 1} takes exactly the rows that it had; later ones are new."
        yield Objection(Check.BOUNDARIES, Outcome.FINE, text)


def _code(
    source: Tree, query: QueryDirectory, batch: Batch, plan: PlanDescription | None
) -> Iterator[Objection]:
    if plan is None:
        text = "Nothing is known about the new code; describe it to compare operators."
        yield Objection(Check.CODE, Outcome.NOTE, text)
        return
    texts = [*_different_sources(batch, plan), *_different_operators(source, query, plan)]
    yield from (Objection(Check.CODE, Outcome.REFUSED, text) for text in texts)
    if not texts:
        text = "Sources, operators and the schemas that are known fit the checkpoint."
        yield Objection(Check.CODE, Outcome.FINE, text)


def _different_sources(batch: Batch, plan: PlanDescription) -> Iterator[str]:
    if plan.sources is None:
        return
    kept = tuple(each.kind for each in batch.sources)
    if len(kept) != len(plan.sources):
        yield f"The checkpoint has {len(kept)} sources, and the new code {len(plan.sources)}."
        return
    for index, (old, new) in enumerate(zip(kept, plan.sources, strict=True)):
        if old is not new and SourceKind.NONE not in (old, new):
            yield f"Source {index} is {old} in the checkpoint, and {new} in the new code."


def _different_operators(
    source: Tree, query: QueryDirectory, plan: PlanDescription
) -> Iterator[str]:
    if plan.operators is None:
        return
    if len(query.operators) != len(plan.operators):
        yield (
            f"The checkpoint has {len(query.operators)} stateful operators, and the new code"
            f" {len(plan.operators)}."
        )
        return
    for kept, planned in zip(query.operators, plan.operators, strict=True):
        if kept.name and planned.name and kept.name != planned.name:
            yield (
                f"Operator {kept.operator_id} is {kept.name} in the checkpoint, and {planned.name}"
                " in the new code."
            )
            continue
        for store, schema in planned.schemas.items():
            yield from _different_schema(source, kept, store, schema)


def _different_schema(
    source: Tree, operator: Operator, store: str, planned: StateSchema
) -> Iterator[str]:
    kept = state_schema(source, operator, store)
    place = f"operator {operator.operator_id} ({operator.name}), store {store}"
    for part, old, new in (
        ("key", kept.key if kept else (), planned.key),
        ("value", kept.value if kept else (), planned.value),
    ):
        types = [kind for _, kind in old]
        if kept is not None and types != [kind for _, kind in new]:
            yield f"The {part} of {place} is {_fields(old)}, and {_fields(new)} in the new code."


def state_schema(source: Tree, operator: Operator, store: str) -> StateSchema | None:
    """Returns the checkpoint's schema, or None if it is missing, damaged, or not comparable."""
    folder = f"state/{operator.operator_id}/0" + ("" if store == "default" else f"/{store}")
    content = source.read(f"{folder}/_metadata/schema")
    try:
        return None if content is None else schema_of(content)
    except Damaged:
        return None


def _fields(fields: Iterable[tuple[str, str]]) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in fields) + ")"


def _sink(query: QueryDirectory, batch: Batch, question: Question) -> Iterator[Objection]:
    newest = query.sink_log.newest if query.sink_log else None
    match question.output:
        case Output.NEW if newest is not None and not question.begins_output:
            text = (
                "Spark's file sink would fail in a new place at its next compaction, because its"
                f" log there does not have batches 0 to {batch.batch_id}. Give the new place, and"
                " ftdash writes an empty log there."
            )
            yield Objection(Check.SINK, Outcome.REFUSED, text)
        case Output.NEW:
            text = "The fork writes to a new place; join it to the old output up to the batch."
            if newest is None:
                text += (
                    " A file sink fails there at its next compaction: if the query has one, give"
                    " its output."
                )
            yield Objection(Check.SINK, Outcome.NOTE, text)
        case Output.REWOUND if newest is None:
            text = "The output has no log of a file sink, so it cannot be rewound."
            yield Objection(Check.SINK, Outcome.REFUSED, text)
        case Output.REWOUND if newest is not None and newest < batch.batch_id:
            text = f"The log of the output ends at batch {newest}, before batch {batch.batch_id}."
            yield Objection(Check.SINK, Outcome.REFUSED, text)
        case Output.REWOUND:
            text = f"The output is copied as it was at batch {batch.batch_id}, with its log."
            yield Objection(Check.SINK, Outcome.FINE, text)
        case Output.SAME_FILES if newest is not None and newest > batch.batch_id:
            text = (
                f"The file sink has batch {newest} in its log: it would drop the rows of batches"
                f" {batch.batch_id + 1} to {newest} without an error. Choose a new or a rewound"
                " output."
            )
            yield Objection(Check.SINK, Outcome.REFUSED, text)
        case Output.SAME_FILES if newest is None:
            text = "The output was not given, so it is not known if its log would drop rows."
            yield Objection(Check.SINK, Outcome.REFUSED, text)
        case Output.SAME_FILES:
            text = "The log of the output ends at the batch: nothing is dropped."
            yield Objection(Check.SINK, Outcome.FINE, text)
        case Output.HANDLED:
            text = (
                "Your sink sees batch ids again. If it goes by them, as Delta does by application"
                " id and version, give the fork another application id, or it drops the rows."
            )
            yield Objection(Check.SINK, Outcome.NOTE, text)


def _target(source: Tree, target: Tree) -> Iterator[Objection]:
    try:
        check_is_apart(target, source)
        check_is_free(target)
    except Rejected as refusal:
        yield Objection(Check.TARGET, Outcome.REFUSED, str(refusal))
    else:
        text = f"{target.location} is free, and becomes the checkpointLocation of the fork."
        yield Objection(Check.TARGET, Outcome.FINE, text)


FORMAT = 1
CONTENT_BYTES_MAX = 4 << 20
_Name = Annotated[str, Meta(max_length=1_000)]


class _Operator(msgspec.Struct):
    """`schemas` is {store: the content of Spark's schema file, in base64}."""

    id: int
    name: _Name
    schemas: dict[_Name, str] = {}


class _Explained(msgspec.Struct):
    format: int
    spark: _Name
    operators: Annotated[list[_Operator], Meta(max_length=1_000)]
    sources: Annotated[list[_Name], Meta(max_length=1_000)]
    shuffle_partitions: int | None = None
    store_class: _Name = ""


def plan_of(content: bytes) -> PlanDescription:
    """Raises Rejected, with the next step, if the helper did not write it."""
    if len(content) > CONTENT_BYTES_MAX:
        raise Rejected(
            f"The plan has {len(content):,} bytes, and may have {CONTENT_BYTES_MAX:,}; give the"
            " file that `explain` of ftdash_listener has written."
        )
    try:
        explained = msgspec.json.decode(content, type=_Explained)
    except UNDECODABLE as error:
        raise Rejected(
            f"The plan cannot be read ({error}); give the file that `explain` of ftdash_listener"
            " has written."
        ) from error
    if explained.format != FORMAT:
        raise Rejected(
            f"The plan has format {explained.format}, and this version reads {FORMAT}; use the"
            " listener of this version of ftdash."
        )
    operators = sorted(explained.operators, key=lambda each: each.id)
    return PlanDescription(
        sources=tuple(_kind(each) for each in explained.sources),
        operators=tuple(PlannedOperator(name=o.name, schemas=_schemas(o)) for o in operators),
        shuffle_partitions=explained.shuffle_partitions,
        store_class=explained.store_class,
    )


def _kind(name: str) -> SourceKind:
    """Returns NONE for an unknown kind of source, so that it is not compared."""
    known = {each.value: each for each in SourceKind}
    return known.get(name, SourceKind.NONE)


def _schemas(operator: _Operator) -> dict[str, StateSchema]:
    found = {}
    for store, encoded in operator.schemas.items():
        try:
            schema = schema_of(base64.b64decode(encoded, validate=True))
        except (Damaged, ValueError) as error:
            raise Rejected(
                f"The plan holds a damaged schema of operator {operator.id}, store {store}; write"
                " it again with `explain` of ftdash_listener."
            ) from error
        if schema is not None:
            found[store] = schema
    return found
