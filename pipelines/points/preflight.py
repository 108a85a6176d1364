"""The preflight of a restore: finds everything that speaks for or against it, and changes nothing.

It builds the pipeline, reads the manifest, looks at every file, asks the sources, and starts
nothing. It also asks the targets what a start would do to the existing output, both for a restore
and for a submission. It reads the files or, if a person waits, only checks their lengths: reading
takes longer the larger the state is, and can be done in steps (`points.comparison`). The verdict is
for a person and for the service that restores. The driver checks the point against the same rules
again when it starts, because time passes in between.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from pipelines.connectors.sink import HoldsTarget
from pipelines.connectors.source import ReadsPastGaps
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.gaps import Gap
from pipelines.domain.guarantees import check_required, end_to_end
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import published_again
from pipelines.domain.run import RunDirectory, ShippedCode
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import Manifest, renamed
from pipelines.flows.finding import find_flow, installed_module
from pipelines.packages.loading import LoadedCode, described
from pipelines.points.contents import bytes_of, pending_commits, source_records_of
from pipelines.points.fit import declared_states, unreachable
from pipelines.points.input import passages, past_accepted
from pipelines.points.published_output import Start, published_up_to, repeats
from pipelines.points.verdict import Check, Finding, Measured, Outcome, Verdict
from pipelines.protocol.compatibility import (
    Compatibility,
    Target,
    compare,
    likely_names,
    unfit_names,
)
from pipelines.storage.manifests import files_of
from pipelines.storage.store import CheckpointStore
from pipelines.stream import Pipeline


def takeovers(pipeline: Pipeline, installation: str) -> Iterator[str]:
    """Yields a sentence for each target that a run of another installation holds.

    Yields one, too, for each target that cannot say which run holds it. A target that a run of
    `installation` holds gets no sentence.
    """
    for uid, sink in pipeline.sinks.items():
        if not isinstance(sink, HoldsTarget):
            continue
        try:
            holder = sink.holder()
        except (Retryable, Rejected) as error:
            text = str(error).rstrip(".")
            yield f"Who holds the output of {uid!r} cannot be told now: {text}."
            continue
        if holder is not None and holder.installation not in ("", installation):
            yield (
                f"The output of {uid!r}, {sink.target}, is held by {holder.described.rstrip(',')}:"
                f" the new run takes it over, and run {holder.run_id} ends as FAILED if it still"
                " runs."
            )


def repeated(pipeline: Pipeline, newest_run: str, manifest: Manifest | None) -> Iterator[str]:
    """Yields a sentence for each target that shows its readers records that they have already seen.

    `newest_run` is the directory of the pipeline's newest run, or empty if there is none. If
    `manifest` is None, the new run starts from nothing.
    """
    if not newest_run:
        return
    run = RunDirectory(Path(newest_run))
    start = Start() if manifest is None else Start.at(manifest)
    published = published_up_to(run)
    for each in repeats(run, pipeline.sinks, start, lambda uid: published):
        yield published_again(each.sink, each.target, each.records, is_at_most=each.is_at_most)


DAMAGES_NAMED_MAX = 3
OTHER_POINTS_MAX = 10
"""How many other points the preflight tries if the sources do not reach back to the chosen one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreQuestion:
    """May `flow` start from the point at `path`, with the new run's `parameters` and `settings`?

    With `reads_files`, every byte of the files is read. Otherwise only their lengths are checked.
    """

    path: str
    flow: str
    parameters: Mapping[str, str]
    parallelism: int
    max_parallelism: int
    allow_non_restored_state: bool = False
    reads_files: bool = True
    measured: Measured = field(default_factory=Measured)
    settings: Mapping[str, str] = field(default_factory=dict)
    changed_settings: Mapping[str, str] = field(default_factory=dict)  # among `settings`
    changed_parameters: Mapping[str, str] = field(default_factory=dict)  # among `parameters`
    refused_before: str = ""  # why an earlier start from the point was refused; empty if none was
    installation: str = ""  # of the new run
    newest_run: str = ""  # the directory of the pipeline's newest run; empty if there is none
    new_names: Mapping[Uid, Uid] = field(default_factory=dict)  # of operators in the point
    accepted_gaps: tuple[str, ...] = ()  # texts of `domain.gaps`
    other_points: tuple[str, ...] = ()  # newest first; tried if sources no longer reach this one
    code: LoadedCode | None = None  # holds `flow`; None if an installed package does


def preflight(question: RestoreQuestion, store: CheckpointStore) -> Verdict:
    """Raises Rejected if `path` lies outside the storage; the verdict says everything else."""
    try:
        stored = store.manifest(question.path)
    except CorruptSnapshot as error:
        refused = Finding(Check.MANIFEST, Outcome.REFUSED, str(error))
        return Verdict(path=question.path, findings=(refused,))
    try:
        pipeline = find_flow(question.flow, question.code).build(question.parameters)
        pipeline.validate_sinks()
    except Rejected as refusal:
        built = Finding(Check.PIPELINE, Outcome.REFUSED, str(refusal))
        said = (
            _manifest_finding(stored),
            *_code(question, stored),
            *_settings(question),
            built,
        )
        return _verdict(question, stored, said)
    unfit = list(unfit_names(stored, pipeline.graph, question.new_names))
    manifest = stored if unfit else renamed(stored, question.new_names)
    target = _target(question, pipeline)
    found, guessed = compare(manifest, target), likely_names(manifest, target)
    looked = _look_at_sources(manifest, pipeline, question, store)
    findings = chain(
        (_manifest_finding(manifest), *_refused_before(question)),
        _code(question, manifest),
        _settings(question),
        (_guarantee(question, pipeline),),
        _new_names(unfit, question),
        _compatibility(found),
        _guessed(guessed),
        _left(stored, found, question),
        _files(question, manifest, store),
        _sources(looked, pipeline, question),
        _output(question, manifest, pipeline),
        _pending(manifest, pipeline),
        _replay(question, manifest),
        _time(question, manifest),
    )
    return replace(
        _verdict(question, manifest, tuple(findings), found),
        likely_names=guessed,
        gaps=looked.gaps,
        accepted_gaps=looked.accepted,
        reaching=looked.reaching,
    )


def _verdict(
    question: RestoreQuestion,
    manifest: Manifest,
    findings: tuple[Finding, ...],
    found: Compatibility | None = None,
) -> Verdict:
    files = list(files_of(manifest))
    return Verdict(
        path=question.path,
        findings=findings,
        run_id=manifest.run_id,
        checkpoint_id=manifest.checkpoint_id,
        kind=manifest.kind.value,
        matched=found.matched if found else (),
        new=found.new if found else (),
        dropped=found.dropped if found else (),
        dropped_states=found.dropped_states if found else (),
        file_count=len(files),
        file_bytes=sum(file.length for file in files),
        pending_commits=pending_commits(manifest),
        records_to_replay=_records_to_replay(question, manifest),
        estimated_ms=_estimated_ms(question, manifest),
    )


def _target(question: RestoreQuestion, pipeline: Pipeline) -> Target:
    return Target(
        pipeline=question.flow,
        graph=pipeline.graph,
        declared=declared_states(pipeline),
        parallelism=question.parallelism,
        max_parallelism=question.max_parallelism,
        allows_non_restored_state=question.allow_non_restored_state,
    )


def _manifest_finding(manifest: Manifest) -> Finding:
    text = (
        f"{manifest.kind.value.capitalize()} {manifest.checkpoint_id} of run {manifest.run_id} of"
        f" {manifest.pipeline!r}, written at parallelism {manifest.parallelism}."
    )
    return Finding(Check.MANIFEST, Outcome.FINE, text)


def _refused_before(question: RestoreQuestion) -> Iterator[Finding]:
    """Only a note, because the problem may have been solved since."""
    if question.refused_before:
        text = f"It was refused before. {question.refused_before}"
        yield Finding(Check.MANIFEST, Outcome.NOTE, text)


def _code(question: RestoreQuestion, manifest: Manifest) -> Iterator[Finding]:
    """Compares shipped code only: no point contains a digest of an installed package."""
    then, now = manifest.code, question.code.code if question.code else None
    if then is None and now is None:
        if (installed := installed_module(question.flow)) in sys.modules:
            text = f"The code that would run is {described(installed)}."
            yield Finding(Check.CODE, Outcome.FINE, text)
        return
    if then is not None and now is not None and then.sha256 == now.sha256:
        text = f"The point was written by the same code: {now.described}."
        yield Finding(Check.CODE, Outcome.FINE, text)
        return
    is_known = then is not None and now is not None
    verdict = "The code has changed" if is_known else "It is not known if the code has changed"
    text = f"{verdict}: {_package(then)} wrote the point, and {_package(now)} would start from it."
    yield Finding(Check.CODE, Outcome.NOTE, text)


def _package(code: ShippedCode | None) -> str:
    return "an installed package" if code is None else code.described


def _settings(question: RestoreQuestion) -> Iterator[Finding]:
    changed = {"Setting": question.changed_settings, "Parameter": question.changed_parameters}
    for kind, each in changed.items():
        for name, value in each.items():
            text = f"{kind} {name} becomes {value!r}, for this run and later ones."
            yield Finding(Check.SETTINGS, Outcome.FINE, text)


def _guarantee(question: RestoreQuestion, pipeline: Pipeline) -> Finding:
    try:
        settings = parse_settings(question.settings)
        found = end_to_end(settings.barriers.mode, pipeline.ends)
        check_required(settings.required_guarantee, found)
    except Rejected as refusal:
        return Finding(Check.GUARANTEE, Outcome.REFUSED, str(refusal))
    return Finding(Check.GUARANTEE, Outcome.FINE, found.sentence)


def _compatibility(found: Compatibility) -> Iterator[Finding]:
    check = Check.COMPATIBILITY
    yield from (Finding(check, Outcome.REFUSED, problem) for problem in found.problems)
    if found.problems:
        return
    yield Finding(check, Outcome.FINE, f"State is restored to {_names(found.matched)}.")
    if found.new:
        yield Finding(check, Outcome.NOTE, f"New, beginning empty: {_names(found.new)}.")
    yield from (Finding(check, Outcome.NOTE, change) for change in found.changes)


def _new_names(unfit: list[str], question: RestoreQuestion) -> Iterator[Finding]:
    yield from (Finding(Check.COMPATIBILITY, Outcome.REFUSED, each) for each in unfit)
    for old, new in () if unfit else question.new_names.items():
        text = f"The state of {old!r} in the point becomes that of {new!r}."
        yield Finding(Check.COMPATIBILITY, Outcome.FINE, text)


def _guessed(likely: Mapping[Uid, Uid]) -> Iterator[Finding]:
    for old, new in likely.items():
        text = (
            f"{old!r} looks like {new!r}: same state, same schema. If you have renamed it, map"
            f" {old} to {new}, and its state is taken over."
        )
        yield Finding(Check.COMPATIBILITY, Outcome.NOTE, text)


def _left(stored: Manifest, found: Compatibility, question: RestoreQuestion) -> Iterator[Finding]:
    """Yields the state that the run would begin without, in rows and bytes."""
    if found.problems:
        return
    former = {new: old for old, new in question.new_names.items()}
    left = [
        *((uid, None) for uid in found.dropped),
        *((former.get(uid, uid), state) for uid, state in found.dropped_states),
    ]
    for uid, state in left:
        handles = [
            handle
            for subtask in stored.subtasks
            for operator in subtask.operators
            for handle in operator.states
            if operator.uid == uid and state in (None, handle.state)
        ]
        rows, size = sum(each.rows for each in handles), sum(bytes_of(each) for each in handles)
        name = f"{uid!r}" if state is None else f"the state {state!r} of {uid!r}"
        text = f"Left behind, as allowed: {name}, {rows:,} keys or rows in {size:,} bytes."
        yield Finding(Check.COMPATIBILITY, Outcome.NOTE, text)


def _files(
    question: RestoreQuestion, manifest: Manifest, store: CheckpointStore
) -> Iterator[Finding]:
    files = list(files_of(manifest))
    found = (store.problem_of(question.path, f, reads=question.reads_files) for f in files)
    problems = [problem for problem in found if problem is not None]
    for problem in problems[:DAMAGES_NAMED_MAX]:
        yield Finding(Check.FILES, Outcome.REFUSED, problem)
    if len(problems) > DAMAGES_NAMED_MAX:
        text = f"{len(problems) - DAMAGES_NAMED_MAX} more files are damaged."
        yield Finding(Check.FILES, Outcome.REFUSED, text)
    if not problems:
        state = "as written" if question.reads_files else "there, none of them truncated"
        text = f"{len(files)} files of {sum(f.length for f in files):,} bytes are {state}."
        yield Finding(Check.FILES, Outcome.FINE, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """The input that the sources can still give from the point on, and its gaps."""

    problems: list[str]
    gaps: tuple[Gap, ...] = ()
    accepted: tuple[Gap, ...] = ()
    reaching: str = ""


def _look_at_sources(
    manifest: Manifest, pipeline: Pipeline, question: RestoreQuestion, store: CheckpointStore
) -> _Looked:
    try:
        passed, accepted = past_accepted(manifest, pipeline.sources, question.accepted_gaps)
        gaps = tuple(each.gap for each in passages(passed, pipeline.sources))
    except Retryable:
        passed, accepted, gaps = manifest, (), ()  # the problems say which source is away
    return _Looked(
        problems=unreachable(passed, pipeline.sources, ahead=True),
        gaps=gaps,
        accepted=accepted,
        reaching=_reaching(pipeline, question, store) if gaps else "",
    )


def _reaching(pipeline: Pipeline, question: RestoreQuestion, store: CheckpointStore) -> str:
    """Returns the newest other point from which the sources still have everything, or ""."""
    for path in question.other_points[:OTHER_POINTS_MAX]:
        try:
            manifest = store.manifest(path)
        except (CorruptSnapshot, Rejected, Retryable):
            continue
        if not unreachable(manifest, pipeline.sources, ahead=True):
            return path
    return ""


def _sources(looked: _Looked, pipeline: Pipeline, question: RestoreQuestion) -> Iterator[Finding]:
    check = Check.SOURCES
    yield from (Finding(check, Outcome.REFUSED, problem) for problem in looked.problems)
    there = {gap.text for gap in looked.accepted}
    for text in sorted(set(question.accepted_gaps) - there):
        said = (
            f"The accepted gap {text!r} is not the current one; run the preflight again, and accept"
            " the gap that it names."
        )
        yield Finding(check, Outcome.REFUSED, said)
    for gap in looked.gaps:
        text = f"The run can continue without {gap.lost}: {_way_on(gap)}"
        yield Finding(check, Outcome.NOTE, text)
    for uid in sorted({gap.source for gap in looked.gaps}):
        source = pipeline.sources[uid]
        if isinstance(source, ReadsPastGaps):
            text = f"To keep the input of {uid!r} for longer, raise {source.retention_setting}."
            yield Finding(check, Outcome.NOTE, text)
    if looked.reaching:
        text = f"From {looked.reaching} on, the sources still have everything."
        yield Finding(check, Outcome.NOTE, text)
    for gap in looked.accepted:
        text = f"Lost, as accepted: {gap.lost}. The ledger of the run says so."
        yield Finding(check, Outcome.NOTE, text)
    if not looked.problems and not looked.accepted:
        text = "The sources still hold everything from the positions of the point on."
        yield Finding(check, Outcome.FINE, text)


def _way_on(gap: Gap) -> str:
    return f"accept the gap {gap.text!r}, and the loss is written into the run's ledger."


def _output(question: RestoreQuestion, manifest: Manifest, pipeline: Pipeline) -> Iterator[Finding]:
    again = repeated(pipeline, question.newest_run, manifest)
    for text in (*takeovers(pipeline, question.installation), *again):
        yield Finding(Check.OUTPUT, Outcome.NOTE, text)


def _pending(manifest: Manifest, pipeline: Pipeline) -> Iterator[Finding]:
    for uid, count in pending_commits(manifest).items():
        if uid in pipeline.sinks:
            text = (
                f"The sink {uid!r} had prepared {count} outputs at the point; they are committed"
                " before anything is written, unless they are already."
            )
        else:
            text = f"{count} outputs that the sink {uid!r} had prepared will not be committed."
        yield Finding(Check.PENDING_COMMITS, Outcome.NOTE, text)


def _replay(question: RestoreQuestion, manifest: Manifest) -> Iterator[Finding]:
    records = _records_to_replay(question, manifest)
    if records is not None:
        about = "About " if records else ""
        text = f"{about}{records:,} records that were read after the point are read again."
        yield Finding(Check.REPLAY, Outcome.NOTE if records else Outcome.FINE, text)


def _time(question: RestoreQuestion, manifest: Manifest) -> Iterator[Finding]:
    estimated_ms = _estimated_ms(question, manifest)
    if estimated_ms is not None:
        count = len(question.measured.recoveries_ms)
        text = (
            f"About {estimated_ms / 1000:.1f} s until that is caught up, judging by {count}"
            " measured recoveries."
        )
        yield Finding(Check.TIME, Outcome.FINE, text)


def _records_to_replay(question: RestoreQuestion, manifest: Manifest) -> int | None:
    return question.measured.records_after(source_records_of(manifest))


def _estimated_ms(question: RestoreQuestion, manifest: Manifest) -> float | None:
    return question.measured.until_caught_up_ms(_records_to_replay(question, manifest))


def _names(uids: Iterable[Uid]) -> str:
    return ", ".join(repr(uid) for uid in uids) or "nothing"
