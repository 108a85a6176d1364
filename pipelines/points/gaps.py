"""Goes past input that is gone: only past exactly those gaps that a person has accepted.

A gap is the range between the position of a point and the first record that its source still has.
The sources find it each time that they are asked, so a range that has grown since is another one.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from pipelines.connectors.source import AnySource, ReadsPastGaps
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import Json, Manifest, OperatorSnapshot


@dataclass(frozen=True, slots=True)
class Passage:
    """`at`: the position behind the gap."""

    gap: Gap
    at: SplitProgress


def passages(manifest: Manifest, sources: Mapping[Uid, AnySource]) -> Iterator[Passage]:
    """Every gap that can be accepted. Changes nothing. Raises Retryable: a source is away."""
    for operator in _operators(manifest):
        source = sources.get(operator.uid)
        if not isinstance(source, ReadsPastGaps):
            continue
        for split in _splits(operator.positions):
            try:
                past = None if split.is_finished else source.past_gap(split)
            except Rejected:
                continue  # another split has its name, which `fit.unreachable` says
            if past is not None:
                gap = Gap(
                    source=operator.uid,
                    split=split.name,
                    first=split.offset,
                    last=past.at.offset - 1,
                    records=past.records,
                )
                yield Passage(gap, past.at)


def past_accepted(
    manifest: Manifest, sources: Mapping[Uid, AnySource], accepted: Collection[str]
) -> tuple[Manifest, tuple[Gap, ...]]:
    """The same point with positions behind the accepted gaps, and those gaps.

    1. Find the gaps as they are now.
    2. Keep those whose text was accepted: a gap that has grown has another text.
    3. Move these splits, and no other one.

    Raises Retryable: a source is away.
    """
    if not accepted:
        return manifest, ()
    found = [each for each in passages(manifest, sources) if each.gap.text in accepted]
    if not found:
        return manifest, ()
    moved = {(each.gap.source, each.gap.split): each.at for each in found}
    subtasks = [
        msgspec.structs.replace(
            subtask, operators=[_moved(operator, moved) for operator in subtask.operators]
        )
        for subtask in manifest.subtasks
    ]
    passed = msgspec.structs.replace(manifest, subtasks=subtasks)
    return passed, tuple(each.gap for each in found)


def _moved(
    operator: OperatorSnapshot, moved: Mapping[tuple[Uid, str], SplitProgress]
) -> OperatorSnapshot:
    if not any(uid == operator.uid for uid, _ in moved):
        return operator
    known = NamedPositions.from_json(operator.positions)
    splits = tuple(moved.get((operator.uid, split.name), split) for split in known.splits)
    positions = msgspec.structs.replace(known, splits=splits).to_json()
    return msgspec.structs.replace(operator, positions=positions)


def _operators(manifest: Manifest) -> Iterator[OperatorSnapshot]:
    for subtask in manifest.subtasks:
        yield from subtask.operators


def _splits(positions: Json) -> tuple[SplitProgress, ...]:
    """Without those of positions that make no sense, which `fit.unreachable` says."""
    try:
        return () if positions is None else NamedPositions.from_json(positions).splits
    except (msgspec.ValidationError, InvariantViolated):
        return ()
