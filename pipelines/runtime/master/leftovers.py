"""Ends unfinished output that a pipeline's runs left in its targets and no recovery point needs.

Output that was written, staged or prepared for a checkpoint that never completed stays in the
target when its run is cancelled or killed: no later checkpoint commits it. Before it writes, a run
ends what earlier runs of its pipeline left; when it ends, it ends its own. Only the run that holds
the target may do so (`domain.ownership`); the target checks that.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from pipelines.connectors.sink import HoldsTarget, LeavesUnfinished, Sink, Unfinished
from pipelines.domain.errors import Rejected, Retryable, TargetTaken
from pipelines.domain.events import Event, LeftoversDiscarded, LeftoversKept
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.patience import waiting_at_most
from pipelines.runtime.master.needed_output import Need, NeededOutput

RUNS_NAMED_MAX = 20
"""The limit for one event."""

PATIENCE_AT_THE_END_S = 10.0
"""The limit for one request to a target when only this is left of the run."""

NEEDED = "A recovery point needs them: a run that restores it commits them."

log = logging.getLogger("ftdash.driver")


@dataclass(frozen=True, slots=True)
class Share:
    """Unfinished output of one kind with one fate. `why_kept` None: it is discarded."""

    what: str
    why_kept: str | None
    items: tuple[Unfinished, ...]

    @property
    def runs(self) -> tuple[RunId, ...]:
        return tuple(sorted({item.run_id for item in self.items}))

    @property
    def size_bytes(self) -> int | None:
        sizes = [item.size_bytes for item in self.items]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


def shares(found: Iterable[Unfinished], need: Need) -> list[Share]:
    """Discards what no point needs, unless its run is in doubt; keeps everything else. Pure."""
    by_fate: dict[tuple[str, str | None], list[Unfinished]] = {}
    for item in found:
        why_kept = NEEDED if item.name in need.names else need.doubts.get(item.run_id)
        if why_kept is None or not item.is_ended_by_writers:
            by_fate.setdefault((item.what, why_kept), []).append(item)
    return [Share(*fate, tuple(items)) for fate, items in by_fate.items()]


class Leftovers:
    """Handles all targets of one run. `emit` writes to its journal. `check_held` raises if another
    driver has the run, which may have begun to write since its points were looked at."""

    def __init__(
        self,
        run_id: RunId,
        needed: NeededOutput,
        emit: Callable[[Event], None],
        check_held: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_id = run_id
        self._needed = needed
        self._emit = emit
        self._check_held = check_held

    def discard_earlier(self, sinks: Iterable[tuple[Uid, Sink]], start: str | None) -> None:
        """Ends what other runs left, before this one writes. `start`: the point it starts from.

        Raises TargetTaken if another run holds a target, Retryable.
        """
        for uid, sink in sinks:
            if isinstance(sink, LeavesUnfinished):
                try:
                    found = [each for each in sink.unfinished() if each.run_id != self._run_id]
                    self._discard(uid, sink, found, start)
                except TargetTaken:
                    raise
                except Rejected as refusal:
                    self._say_refused(uid, sink, refusal)

    def discard_own(self, sinks: Iterable[tuple[Uid, Sink]]) -> None:
        """Ends what this run leaves, once none of its subtasks writes any more. A target that does
        not answer, or that another run holds by now, is left to the next run of the pipeline."""
        for uid, sink in sinks:
            if isinstance(sink, LeavesUnfinished):
                try:
                    with waiting_at_most(PATIENCE_AT_THE_END_S):
                        found = [each for each in sink.unfinished() if each.run_id == self._run_id]
                        self._discard(uid, sink, found, None)
                except (Retryable, Rejected) as error:
                    self._say_refused(uid, sink, error)

    def _discard(
        self, uid: Uid, sink: LeavesUnfinished, found: Collection[Unfinished], start: str | None
    ) -> None:
        if not found:
            return
        need = self._needed.of(sorted({each.run_id for each in found}), start)
        for share in shares(found, need):
            if share.why_kept is not None:
                self._say_kept(uid, sink, share, share.why_kept)
                continue
            self._check_held()
            names = [item.name for item in share.items]
            self._say_discarded(uid, sink, share, sink.discard(names, self._run_id))

    def _say_kept(self, uid: Uid, sink: LeavesUnfinished, share: Share, why: str) -> None:
        kept = LeftoversKept(
            sink=uid,
            target=_target_of(sink),
            what=share.what,
            why=why,
            count=len(share.items),
            runs=share.runs[:RUNS_NAMED_MAX],
            run_count=len(share.runs),
        )
        self._emit(kept)

    def _say_discarded(self, uid: Uid, sink: LeavesUnfinished, share: Share, count: int) -> None:
        discarded = LeftoversDiscarded(
            sink=uid,
            target=_target_of(sink),
            what=share.what,
            count=count,
            runs=share.runs[:RUNS_NAMED_MAX],
            run_count=len(share.runs),
            size_bytes=share.size_bytes,
        )
        self._emit(discarded)

    def _say_refused(self, uid: Uid, sink: LeavesUnfinished, error: Exception) -> None:
        log.warning("What was left in the target of %s stays: %s", uid, error)
        why = f"It could not be cleaned up, which the next run of the pipeline tries again: {error}"
        kept = LeftoversKept(sink=uid, target=_target_of(sink), what="unfinished output", why=why)
        self._emit(kept)


def _target_of(sink: object) -> str:
    return sink.target if isinstance(sink, HoldsTarget) else ""
