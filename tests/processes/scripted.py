"""A flow that goes only as far as its test says, so that a crash leaves the same state each time.

Numbers go from two splits through a keyed relay into files. Each split reads as far as a file in
`script` allows; the relay records what it has seen, and when. The fast split takes barriers while
it waits. The slow one does not, so its barrier comes as long after the fast one's as the test
likes.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.connectors import ExactlyOnceFiles
from pipelines.domain.graph import Connection
from pipelines.domain.run import Parameter
from pipelines.operators.stateless import BatchFunction
from pipelines.stream import Environment, Flow, Pipeline, Stream
from tests.processes.numbers import SCHEMA, Numbers

FAST, SLOW = range(2)  # splits
SPLIT = 1_000  # numbers per split at most
LAST = 400  # numbers that each split has
BEFORE = {FAST: range(200), SLOW: range(SPLIT, SPLIT + 200)}
"""Read before the barriers of checkpoint 1; the slow split waits before its last hundred."""
BEHIND = range(200, 300)
"""The fast split's numbers between its barrier of checkpoint 1 and the slow split's."""

FAST_WAITS, SLOW_WAITS, BEHIND_IS_SENT = "fast-waits", "slow-waits", "behind-is-sent"  # flow writes
SEND_BEHIND, READ_SLOW, RELAY, GO_ON = "send-behind", "read-slow", "relay", "go-on"  # test writes
SEEN = "seen"
POLL_S = 0.002
NOTHING = pa.RecordBatch.from_pylist([], SCHEMA)


@dataclass(frozen=True, slots=True)
class ScriptedNumbers(Numbers):
    script: Path = Path()

    def split_id(self, index: int) -> str | None:
        return ("fast", "slow")[index] if index in (FAST, SLOW) else None

    def read(self, index: int, offset: int) -> Iterator[pa.RecordBatch]:
        first = index * SPLIT
        batches = Numbers(first + LAST).read(index, 0)
        for start, batch in zip(range(0, LAST, 100), batches, strict=True):
            if start < offset:
                continue
            yield from self._pause(index, start)
            yield batch
            if (index, start) == (FAST, BEHIND.start):
                (self.script / BEHIND_IS_SENT).touch()

    def _pause(self, index: int, start: int) -> Iterator[pa.RecordBatch]:
        match index, start:
            case (0, 200):
                (self.script / FAST_WAITS).touch()
                yield from _nothing_until((self.script / SEND_BEHIND).exists)
            case (1, 100):
                (self.script / SLOW_WAITS).touch()
                _wait_until((self.script / READ_SLOW).exists)
            case (0, 300) | (1, 200):
                yield from _nothing_until((self.script / GO_ON).exists)


def _nothing_until(holds: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
    while not holds():
        time.sleep(POLL_S)
        yield NOTHING


def _wait_until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(POLL_S)


def assemble(parameters: Mapping[str, str]) -> Pipeline:
    script = Path(parameters["script"])

    def relay(batch: pa.RecordBatch) -> pa.RecordBatch:
        _wait_until((script / RELAY).exists)
        now_ms = int(time.time() * 1000)
        lines = "".join(f"{number} {now_ms}\n" for number in batch["number"].to_pylist())
        log = os.open(script / SEEN, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(log, lines.encode())
        os.close(log)
        return batch

    env = Environment()
    numbers = env.source(ScriptedNumbers(2 * SPLIT, script), uid="numbers")
    keyed = Connection(numbers.node, ("key",))
    node = env.add_operator("relay", lambda: BatchFunction(relay, SCHEMA), (keyed,))
    output = ExactlyOnceFiles(Path(parameters["output"]), pipeline="scripted")
    Stream(env, node, "at").sink(output, uid="files")
    return env.build()


FLOW = Flow(
    name="scripted",
    summary="Numbers as far as a script allows, for tests.",
    parameters=(
        Parameter("output", None, "directory of the output"),
        Parameter("script", None, "directory of the files that let it go on"),
    ),
    assemble=assemble,
)
