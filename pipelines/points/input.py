"""The input that a restore skips because it is gone, and the input that it replays.

A gap is the range between the position of a point and the first record that its source still has.
A start skips exactly those gaps that a person has accepted. The sources determine a gap each time
they are asked, so a range that has grown since then is a different gap.

A restore may replay quarantined records. This module counts the records in the files that belong to
a point and that the point has not replayed yet; `connectors.files.quarantine` reads them. It
changes nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipelines.connectors.files.quarantine import check_comes_back
from pipelines.connectors.files.sink import Committable
from pipelines.connectors.files.target import FileTarget
from pipelines.connectors.source import AnySource, ReadsPastGaps
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import Uid
from pipelines.domain.poison import REPLAYED_PREFIX
from pipelines.domain.settings import CheckpointingMode, Settings
from pipelines.domain.snapshots import Json, Manifest, OperatorSnapshot
from pipelines.points.stored_output import quarantined_of
from pipelines.stream import Pipeline


@dataclass(frozen=True, slots=True)
class Passage:
    """`at` is the position behind the gap."""

    gap: Gap
    at: SplitProgress


def passages(manifest: Manifest, sources: Mapping[Uid, AnySource]) -> Iterator[Passage]:
    """Yields every gap that a person can accept. Raises Retryable if a source is away."""
    for operator in _operators(manifest):
        source = sources.get(operator.uid)
        if not isinstance(source, ReadsPastGaps):
            continue
        for split in _splits(operator.positions):
            try:
                past = None if split.is_finished else source.past_gap(split)
            except Rejected:
                continue  # another split has its name; `fit.unreachable` reports that
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
    """Returns the same point with positions behind the accepted gaps, and those gaps.

    1. Find the gaps as they are now.
    2. Keep those whose text was accepted: a gap that has grown has another text.
    3. Move these splits, and no others.

    Raises Retryable if a source is away.
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
    """Returns no splits for positions that make no sense; `fit.unreachable` reports those."""
    try:
        return () if positions is None else NamedPositions.from_json(positions).splits
    except (msgspec.ValidationError, InvariantViolated):
        return ()


EXACT_MODES = (CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE)


@dataclass(frozen=True, slots=True)
class SetAside:
    """Records in the quarantine of one source that belong to a point."""

    waiting: int
    replayed: int


def set_aside(manifest: Manifest, home: str, sources: Collection[Uid]) -> dict[Uid, SetAside]:
    """Returns the counts for each source with a quarantine; `home` is the directory of all of them.

    Raises Rejected if one cannot be read now.
    """
    lineage = [*manifest.ancestors, (manifest.run_id, manifest.checkpoint_id)]
    found = {}
    for uid in sorted(sources):
        directory = Path(home) / uid
        if directory.is_dir():
            target, snapshots = FileTarget(directory, manifest.pipeline), _of(manifest, uid)
            try:
                files = {file.name: file for file in target.belonging(lineage)}
                files |= dict(_prepared(snapshots, directory, files))
                found[uid] = _counted(files, _progress(snapshots))
            except OSError as error:
                raise Rejected(
                    f"The quarantine {directory} cannot be read now ({error.strerror}); ask again"
                    " when its disk answers."
                ) from error
    return found


def check_replayable(
    manifest: Manifest,
    pipeline: Pipeline,
    settings: Settings,
    home: str,
    only: Collection[str] = (),
) -> dict[Uid, int]:
    """Returns how many records each source would replay; `only` names sources, empty means all.

    Raises Rejected if nothing can be replayed.
    """
    mode = settings.barriers.mode
    if mode not in EXACT_MODES:
        raise Rejected(
            f"A quarantine cannot be replayed with execution.checkpointing.mode {mode}, which does"
            " not go back to where it was read; use EXACTLY_ONCE or AT_LEAST_ONCE."
        )
    for name in only:
        if name not in pipeline.sources:
            known = ", ".join(sorted(pipeline.sources))
            raise Rejected(f"The pipeline has no source {name!r}; its sources are {known}.")
    point = f"checkpoint {manifest.checkpoint_id} of run {manifest.run_id}"
    chosen = [uid for uid in pipeline.sources if not only or uid in only]
    found = set_aside(manifest, home, chosen)
    waiting = {uid: each.waiting for uid, each in found.items() if each.waiting}
    if not waiting:
        raise Rejected(_why_nothing(sum(each.replayed for each in found.values()), point))
    for uid in waiting:
        for column in pipeline.sources[uid].schema:
            check_comes_back(column)
    return waiting


def _why_nothing(replayed: int, point: str) -> str:
    if replayed:
        records = "the only record" if replayed == 1 else f"all {replayed:,} records"
        return f"Nothing is left to replay: {records} in quarantine at {point} went in again."
    return f"There is nothing to replay: no record was in quarantine at {point}."


def _of(manifest: Manifest, uid: Uid) -> list[OperatorSnapshot]:
    operators = (each for subtask in manifest.subtasks for each in subtask.operators)
    return [operator for operator in operators if operator.uid == uid]


def _prepared(
    snapshots: list[OperatorSnapshot], directory: Path, visible: Mapping[str, Path]
) -> Iterator[tuple[str, Path]]:
    """Yields the files that a restore commits before it reads anything."""
    for prepared in quarantined_of(snapshots):
        for file in msgspec.convert(list(prepared.committables), list[Committable]):
            if file.final not in visible and (directory / file.temporary).exists():
                yield file.final, directory / file.temporary


def _progress(snapshots: list[OperatorSnapshot]) -> dict[str, SplitProgress]:
    """Returns the progress by name of the file."""
    positions = [NamedPositions.from_json(s.replayed) for s in snapshots if s.replayed is not None]
    splits = [split for each in positions for split in each.every()]
    return {split.name.removeprefix(REPLAYED_PREFIX): split for split in splits}


def _counted(files: Mapping[str, Path], progress: Mapping[str, SplitProgress]) -> SetAside:
    waiting = replayed = 0
    for name, file in files.items():
        with file.open("rb") as lines:
            count = sum(1 for line in lines if line.strip())
        split = progress.get(name)
        done = 0 if split is None else count if split.is_finished else min(split.offset, count)
        waiting, replayed = waiting + count - done, replayed + done
    return SetAside(waiting, replayed)
