"""The findings of a game day so far, in sentences. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ftdash.formats import count, duration, plural
from ftdash.gameday.scoring import AuditFound, Measures, Seen


class Outcome(StrEnum):
    FINE = "fine"
    NOTE = "note"
    BROKEN = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: Outcome
    text: str


def findings(seen: Seen) -> list[Finding]:
    return list(_findings(seen))


def _findings(seen: Seen) -> Iterator[Finding]:
    if seen.refusal or seen.failed_at is None:
        return
    measures = seen.measures
    yield Finding(Outcome.FINE, f"It took effect: {seen.cause}")
    if seen.harm:
        yield Finding(Outcome.BROKEN, f"The run failed, which it must not for this: {seen.harm}")
    if measures.detection_ms is not None:
        yield Finding(Outcome.FINE, f"Detected after {duration(measures.detection_ms)}.")
    if measures.watched_again_ms is not None:
        after = duration(measures.watched_again_ms)
        text = f"A worker watches again after {after}; the run went on meanwhile."
        yield Finding(Outcome.FINE, text)
    if measures.recovery_ms is not None:
        yield Finding(Outcome.FINE, _running(measures))
    if seen.committed_checkpoint_id is not None:
        text = f"Checkpoint {seen.committed_checkpoint_id} was completed and committed since."
        yield Finding(Outcome.FINE, text)
    yield from _losses(measures)
    if seen.audit is not None and seen.audit.is_over:
        yield from _audited(seen.audit)


def _running(measures: Measures) -> str:
    since = (
        f"checkpoint {measures.restored_checkpoint_id}"
        if measures.restored_checkpoint_id
        else "the beginning"
    )
    replayed = (
        f", with {plural(measures.records_replayed, 'record')} to read again"
        if measures.records_replayed is not None
        else ""
    )
    after = duration(measures.recovery_ms)
    return f"All subtasks ran again after {after}, from {since}{replayed}."


def _losses(measures: Measures) -> Iterator[Finding]:
    if measures.checkpoints_lost:
        lost = plural(measures.checkpoints_lost, "checkpoint")
        yield Finding(Outcome.NOTE, f"{lost} under way did not complete.")
    if measures.late_refused:
        late = count(measures.late_refused)
        yield Finding(Outcome.FINE, f"The attempt before spoke up late and was refused {late} ×.")
    if measures.further_failures:
        further = plural(measures.further_failures, "further failure")
        yield Finding(Outcome.NOTE, f"{further} in the meantime.")


def _audited(audit: AuditFound) -> Iterator[Finding]:
    if audit.is_as_recorded is None:
        yield Finding(Outcome.NOTE, f"The output could not be audited: {audit.problem}")
        return
    if not audit.is_as_recorded:
        yield Finding(Outcome.BROKEN, f"The output is not as recorded: {audit.first_difference}")
    for proof in audit.proofs:
        if not proof.is_audited:
            yield Finding(Outcome.NOTE, f"{proof.sink} cannot be read again and was not audited.")
        elif proof.checkpoint_id is not None:
            text = f"{proof.sink} is as recorded up to checkpoint {proof.checkpoint_id}."
            yield Finding(Outcome.FINE, text)
