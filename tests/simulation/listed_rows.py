"""The contents of state that belongs to no key in a point, as rows of `model`."""

from collections import Counter
from collections.abc import Iterator

from pipelines.domain.key_groups import Redistribution
from pipelines.domain.snapshots import OperatorSnapshot
from pipelines.points.browsing import rows_of
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.simulation.model import Output
from tests.simulation.plans import Plan


def listed_rows(store: FileSystemCheckpointStore, point: str, plan: Plan) -> Output:
    """Returns the rows of all `lists` of the plan.

    The lists of all subtasks are one. Maps must be the same in every subtask; their minimum counts,
    and an excess in one subtask becomes a row of its own.
    """
    manifest, output = store.manifest(point), Counter[tuple[str, int, int]]()
    operators = [each for subtask in manifest.subtasks for each in subtask.operators]
    for index, step in enumerate(plan.steps):
        if step.operation == "lists":
            subtasks = [each for each in operators if each.uid == f"lists-{index}"]
            output.update(_listed(store, point, subtasks))
    return output


def _listed(
    store: FileSystemCheckpointStore, point: str, subtasks: list[OperatorSnapshot]
) -> Iterator[tuple[str, int, int]]:
    maps = [dict[int, int]() for _ in subtasks]
    for subtask, known in zip(subtasks, maps, strict=True):
        for state in subtask.states:
            for batch in rows_of(store, point, state):
                first, *values = (column.to_pylist() for column in batch.columns)
                if state.redistribution is Redistribution.BROADCAST:
                    known.update(zip(first, *values, strict=True))
                else:
                    yield from ((str(state.redistribution), number, 0) for number in first)
    for entry in set[int]().union(*maps):
        told = [known.get(entry, 0) for known in maps]
        yield "broadcast", entry, min(told)
        if max(told) > min(told):
            yield "told to one subtask", entry, max(told)
