"""The results of a seed, for the checkers."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipelines.bus.journal import every_envelope
from pipelines.connectors.split_progress import SplitPositions
from pipelines.domain.events import Event
from pipelines.domain.run import RunDirectory
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.simulation.circumstances import Circumstances
from tests.simulation.disk import Disk
from tests.simulation.listed_rows import listed_rows
from tests.simulation.model import Output, model
from tests.simulation.outside import Part, World
from tests.simulation.plans import Plan
from tests.simulation.poison import quarantined_in


@dataclass
class Outcome:
    seed: int
    root: Path
    circumstances: Circumstances
    plan: Plan
    world: World
    disk: Disk
    store: FileSystemCheckpointStore  # reads without faults
    directories: list[RunDirectory] = field(default_factory=list)  # of the runs, oldest first
    drained_at: str | None = None  # the savepoint that ended the last run early, windows and all
    seen: Counter[str] = field(default_factory=Counter)
    parallelisms: list[int] = field(default_factory=list)
    trace: str = ""
    quarantined: Output = field(default_factory=Counter)
    turns: int = 0  # of all runs, and of those that the checkers continued

    @property
    def mode(self) -> str:
        return self.circumstances.mode

    def look_into_quarantine(self) -> None:
        """Reads the quarantine, before another run from an older point sets some of it aside."""
        self.quarantined = quarantined_in(self.directories[0].quarantine, self.plan)

    # The checkers ask for these once all runs have ended, some more than once.

    @cached_property
    def wanted(self) -> Output:
        return self.expected(self.read())

    @cached_property
    def output(self) -> Output:
        """Returns the rows that readers see, and those that only the newest point has."""
        newest = self.disk.newest
        rows = self.world.output() + self.quarantined
        return rows if newest is None else rows + listed_rows(self.store, newest, self.plan)

    @cached_property
    def histories(self) -> list[list[Event]]:
        """Returns the events of each run."""
        return [self.events_of(directory) for directory in self.directories]

    def expected(self, part: Part) -> Output:
        return model(self.plan, part, self.circumstances.poison)

    def read(self) -> Part:
        """Returns the part of the input that the output has to show."""
        return self.plan.whole() if self.drained_at is None else read_at(self, self.drained_at)

    def events_of(self, directory: RunDirectory) -> list[Event]:
        return [envelope.event for envelope in every_envelope(directory.journal_file)]

    def of(self, *kinds: type[Event]) -> list[Event]:
        """Returns the events of these kinds, of all runs."""
        events = (event for history in self.histories for event in history)
        return [event for event in events if isinstance(event, kinds)]

    def points(self) -> list[str]:
        """Returns the complete points that still exist, of all runs."""
        roots = [str(directory.path / "checkpoints") for directory in self.directories]
        roots.append(str(self.directories[0].path.parent.parent / "savepoints"))
        return [path for root in roots for path in self.store.published(root)]


def read_at(outcome: Outcome, point: str) -> Part:
    """Returns the number of records of each split before the cut."""
    part = dict.fromkeys(outcome.plan.whole(), 0)
    for source in outcome.plan.sources:
        positions = [
            SplitPositions.from_json(operator.positions)
            for subtask in outcome.store.manifest(point).subtasks
            for operator in subtask.operators
            if operator.uid == f"source-{source}"
        ]
        for split in range(outcome.plan.splits):
            part[source, split] = _read_of(split, positions, outcome.plan.records)
    return part


def _read_of(split: int, positions: list[SplitPositions], records: int) -> int:
    """A subtask has it in its backlog, or none has reached it, or it was read to its end."""
    for position in positions:
        for index, offset in position.backlog:
            if index == split:
                return offset
    frontiers = [p.frontier for p in positions if split >= p.frontier]
    is_ahead = any((split - frontier) % positions[0].stride == 0 for frontier in frontiers)
    return 0 if is_ahead else records
