"""A flow with state that belongs to no key: a split list, a union list and a broadcast map.

The first numbers are the elements, each entered once by the subtask that gets it. A subtask that
begins to work reports its elements, so that the output shows who had what after each restore.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.key_groups import Redistribution
from pipelines.domain.run import Parameter
from pipelines.domain.snapshots import Manifest
from pipelines.points.browsing import rows_of
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    Flow,
    ListStateDescriptor,
    MapStateDescriptor,
    Pipeline,
    ProcessContext,
)
from tests.processes.numbers import Numbers

ELEMENTS = 60
LISTS = "lists"
NUMBERS_PER_S = 1_800  # at half an hour of event time per second
REPORT = pa.schema(
    [
        ("parallelism", pa.int64()),
        ("subtask", pa.int64()),
        ("state", pa.string()),
        ("elements", pa.list_(pa.int64())),
    ]
)


class Lists(BatchProcessFunction):
    def open(self, context: ProcessContext) -> None:
        self._split = context.get_operator_list_state(ListStateDescriptor("split", pa.int64()))
        self._union = context.get_operator_union_list_state(
            ListStateDescriptor("union", pa.int64())
        )
        self._rules = context.get_broadcast_state(
            MapStateDescriptor("rules", pa.int64(), pa.int64())
        )
        self._has_begun = False

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        if not self._has_begun:
            self._begin(context)
        numbers = batch["number"]
        elements = numbers.filter(pc.less(numbers, ELEMENTS))
        self._split.add(elements)
        self._union.add(elements)

    def process_other_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        self._rules.put_all(batch["number"], pc.negate(batch["number"]))

    def _begin(self, context: ProcessContext) -> None:
        """Reports its elements.

        It keeps only its own part of the union list, which would otherwise grow with every restore.
        """
        self._has_begun = True
        held = {
            "split": self._split.get(),
            "union": self._union.get(),
            "broadcast": pa.array([key for key, value in self._rules.items() if value == -key]),
        }
        rows = [
            {
                "parallelism": context.parallelism,
                "subtask": context.subtask,
                "state": state,
                "elements": elements.to_pylist(),
            }
            for state, elements in held.items()
        ]
        context.collect(pa.RecordBatch.from_pylist(rows, REPORT))
        own = [n for n in held["union"].to_pylist() if n % context.parallelism == context.subtask]
        self._union.update(pa.array(own, pa.int64()))


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    env = Environment(pace=0.5)
    numbers = env.source(Numbers(1_000_000), uid="numbers")
    rules = numbers.filter(pc.field("number") < ELEMENTS, uid="rules").broadcast()
    keyed = numbers.key_by("number")
    reports = keyed.connect(rules).process(Lists(), REPORT, uid=LISTS)
    output = Path(parameters["output"])
    reports.sink(ExactlyOnceFiles(output, pipeline="shared_lists"), uid="files")
    return env.build()


def reports_in(output: Path, parallelism: int) -> list[dict[str, object]]:
    files = sorted(path for path in output.glob("*.parquet") if path.name[0] not in "._")
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    return [row for row in rows if row["parallelism"] == parallelism]


def elements_in(point: Path, manifest: Manifest, kind: Redistribution) -> list[list[int]]:
    """Returns the elements of the list of that kind that each subtask has in a point."""
    store = FileSystemCheckpointStore([str(point)])
    held = []
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            for state in operator.states:
                if operator.uid == LISTS and state.redistribution is kind:
                    batches = rows_of(store, str(point), state)
                    held.append(sorted(n for b in batches for n in b.column(0).to_pylist()))
    return held


FLOW = Flow(
    name="shared_lists",
    summary="State that belongs to no key, for tests.",
    parameters=(Parameter("output", None, "directory of the output"),),
    assemble=assemble,
)
