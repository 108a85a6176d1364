"""The flow of the lab: parses page views, counts them by application, writes each to the sink.

Two steps follow the source, each behind an exchange, like Storm's spout and two bolts. A slot that
parses a view of the kill schedule kills its own process with SIGKILL; each place is used once.
"""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.disk.files import create_if_absent
from pipelines.domain.parameters import Parameter
from pipelines.lab.view_input import ViewInput, wall_ms
from pipelines.lab.view_log import ViewLog
from pipelines.operators.operator import Operator
from pipelines.stream import (
    BatchProcessFunction,
    Environment,
    Pipeline,
    ProcessContext,
    ValueStateDescriptor,
)
from pipelines.stream.declaration import Flow
from pipelines.stream.streams import Stream

NAME = "guarantee_lab"
SOURCE, PARSE, COUNT, LOG = "page_views", "parse", "count", "log"
STEPS = 2
"""The number of exchanges that each record passes."""

PARSED = pa.schema([("view", pa.int64()), ("app", pa.int64()), ("happened_ms", pa.int64())])
COUNTED = PARSED.append(pa.field("views", pa.int64()))
KILLED = "killed-"

_LINE = r"^/app/(?P<app>\d+)\?view=(?P<view>\d+)$"


class Parse(Operator):
    """Makes one row of each row, and reports that lineage: an acker hears of each record once."""

    def __init__(self, directory: Path, kill_places: tuple[int, ...]) -> None:
        self._directory = directory
        self._places = kill_places

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        return PARSED

    def on_batch(self, port: int, batch: pa.RecordBatch) -> None:
        fields = pc.extract_regex(batch.column("line"), _LINE)
        view = fields.field("view").cast(pa.int64())
        self._die_if_due(int(pc.max(view).as_py()))
        if self.context.lineage is not None:
            self.context.lineage.descend_from(np.arange(batch.num_rows))
        app, happened_ms = fields.field("app").cast(pa.int64()), batch.column("happened_ms")
        self.context.collect(pa.record_batch([view, app, happened_ms], schema=PARSED))

    def _die_if_due(self, newest: int) -> None:
        for number, place in enumerate(self._places):
            if newest >= place and self._is_first_at(number, newest):
                os.kill(os.getpid(), signal.SIGKILL)

    def _is_first_at(self, number: int, newest: int) -> bool:
        noted = self._directory / f"{KILLED}{number}"
        return not noted.exists() and create_if_absent(noted, f"{wall_ms()} {newest}".encode())


class CountViews(BatchProcessFunction):
    """Adds to each view how often its application has been viewed, its batch included."""

    def open(self, context: ProcessContext) -> None:
        self._views = context.get_state(ValueStateDescriptor("views", pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: ProcessContext) -> None:
        groups = context.group(batch)
        before = self._views.value(groups.keys).fill_null(0).to_numpy()
        totals = before + np.bincount(groups.index, minlength=groups.count)
        self._views.update(groups.keys, pa.array(totals))
        context.collect(batch.append_column("views", pa.array(totals[groups.index])))


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    directory = Path(parameters["directory"])
    number = {name: int(parameters[name]) for name in ("seed", "records", "rate", "splits")}
    places = tuple(int(place) for place in parameters["kill_places"].split())
    env = Environment()
    counted = counted_views(env, ViewInput(directory, **number), places)
    counted.sink(ViewLog(directory, parameters["is_transactional"] == "yes"), uid=LOG)
    return env.build()


def counted_views(env: Environment, views: ViewInput, kill_places: tuple[int, ...] = ()) -> Stream:
    lines = env.source(views, uid=SOURCE).rebalance()
    node = env.add_operator(
        PARSE, lambda: Parse(views.directory, kill_places), (lines.connection(),)
    )
    return Stream(env, node, None).key_by("app").process(CountViews(), COUNTED, uid=COUNT)


def kills(directory: Path) -> list[tuple[int, int]]:
    """When, wall clock in milliseconds, and at which view; in order."""
    texts = [path.read_text().split() for path in directory.glob(f"{KILLED}*")]
    return sorted((int(at_ms), int(view)) for at_ms, view in texts)


FLOW = Flow(
    name=NAME,
    summary="Page views by application, for the guarantee lab.",
    parameters=(
        Parameter("directory", None, "of input notes and output"),
        Parameter("seed", None, "of the views"),
        Parameter("records", None, "how many views"),
        Parameter("rate", None, "views a second; 0: all have happened"),
        Parameter("splits", None, "of the input"),
        Parameter("kill_places", "", "numbers of views at which a slot dies"),
        Parameter("is_transactional", None, "yes: rows become visible with their checkpoint"),
    ),
    assemble=assemble,
)
