"""The thread of one acker: takes the messages of subtasks, sends verdicts to the spouts.

`protocol.acking` decides which trees are processed. An acker takes no part in checkpoints: its
knowledge concerns one attempt, and the next attempt emits all of its records again. The messages
are record batches on separate channels. One message covers many trees. It travels like records do:
in order, against credit, and at a real cost.

Source: Storm, the system bolt `Acker`.
"""

import threading
from collections.abc import Callable, Mapping
from enum import IntEnum

import numpy as np
import pyarrow as pa

from pipelines.channels.channel import ChannelClosed, InputGate, Output
from pipelines.domain.clock import Clock
from pipelines.domain.elements import Element, EndOfInput, Records
from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.ids import ChannelId, Uid, channel_id
from pipelines.protocol.acking import Acker, AckerStatistics, Ids, Numbers, Settled
from pipelines.runtime.subtask.feed import IDLE_WAIT_MS
from pipelines.runtime.subtask.mailbox import Mailbox

ACKER = Uid("storm:acker")  # never an operator's uid, because those contain no colon
_ABOUT_TREES = pa.schema([("kind", pa.uint8()), ("tree", pa.uint64()), ("edges", pa.uint64())])
_VERDICTS = pa.schema([("tree_number", pa.int64()), ("is_acked", pa.bool_())])


class MessageKind(IntEnum):
    """All trees of one message have the same kind. Source: the streams of Storm's acker."""

    INIT = 0
    ACK = 1
    FAIL = 2


def channel_to_acker(vertex: Uid, subtask: int, acker: int) -> ChannelId:
    return channel_id(vertex, subtask, ACKER, 0, acker)


def channel_to_spout(acker: int, source: Uid, subtask: int) -> ChannelId:
    return channel_id(ACKER, acker, source, 0, subtask)


def about_trees(kind: MessageKind, trees: Ids, edges: Ids) -> Records:
    kinds = np.full(len(trees), kind, np.uint8)
    columns = [pa.array(column) for column in (kinds, trees, edges)]
    return Records(pa.RecordBatch.from_arrays(columns, schema=_ABOUT_TREES))


def read_about_trees(message: Records) -> tuple[MessageKind, Ids, Ids]:
    kinds, trees, edges = (column.to_numpy() for column in message.batch.columns)
    return MessageKind(int(kinds[0])), trees, edges


def verdict(acked: Numbers, failed: Numbers) -> Records:
    is_acked = np.arange(len(acked) + len(failed)) < len(acked)
    columns = [pa.array(np.concatenate([acked, failed])), pa.array(is_acked)]
    return Records(pa.RecordBatch.from_arrays(columns, schema=_VERDICTS))


def read_verdict(message: Records) -> tuple[Numbers, Numbers]:
    """Returns the trees that are acked, and those that failed."""
    numbers, is_acked = (column.to_numpy(zero_copy_only=False) for column in message.batch.columns)
    return numbers[is_acked], numbers[~is_acked]


class AckerTask(threading.Thread):
    """The thread of one acker. It ends when all `channel_count` inputs have ended.

    `spouts`: the channel to each spout, by the spout's number.
    """

    def __init__(
        self,
        *,
        name: str,
        acker: Acker,
        gate: InputGate,
        channel_count: int,
        spouts: Mapping[int, Output],
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._acker = acker
        self._gate = gate
        self._open_count = channel_count
        self._spouts = spouts
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._rotates_at_ms = clock.monotonic_ms() + timeout_ms
        self._mailbox = Mailbox()
        self._on_failure: Callable[[BaseException], None] = _not_begun
        gate.on_available(self._mailbox.wake)
        for output in spouts.values():
            output.on_available(self._mailbox.wake)

    def begin(self, on_failure: Callable[[BaseException], None]) -> None:
        """Starts the thread. It calls `on_failure` if it fails: no tree completes without it."""
        self._on_failure = on_failure
        self.start()

    def run(self) -> None:
        try:
            while self._open_count:
                if not self.step():
                    self._mailbox.wait(IDLE_WAIT_MS)
            for output in self._spouts.values():
                output.send(EndOfInput())
        except ChannelClosed:
            pass  # the attempt is over; its end has been reported
        except BaseException as error:
            self._on_failure(error)

    def statistics(self) -> AckerStatistics:
        return self._acker.statistics()

    def step(self) -> bool:
        """Handles one message. Returns False if there is none, or if a spout's channel is full."""
        if self._clock.monotonic_ms() >= self._rotates_at_ms:
            self._rotates_at_ms = self._clock.monotonic_ms() + self._timeout_ms
            self._acker.rotate()
        if not self._flush():
            return False
        polled = self._gate.poll()
        if polled is None:
            return False
        self._on_element(polled[1])
        return True

    def _flush(self) -> bool:
        full = [output for output in self._spouts.values() if not output.flush()]
        return not full

    def _on_element(self, element: Element) -> None:
        match element:
            case Records():
                self._tell(self._verdicts_on(element))
            case EndOfInput():
                check(self._open_count > 0, "each input of an acker ends once")
                self._open_count -= 1
            case _:
                raise InvariantViolated(f"no {type(element).__name__} goes to an acker")

    def _verdicts_on(self, message: Records) -> list[Settled]:
        kind, trees, edges = read_about_trees(message)
        match kind:
            case MessageKind.INIT:
                return self._acker.on_init(trees, edges)
            case MessageKind.ACK:
                return self._acker.on_ack(trees, edges)
            case MessageKind.FAIL:
                return self._acker.on_fail(trees)

    def _tell(self, verdicts: list[Settled]) -> None:
        for each in verdicts:
            self._spouts[each.spout].send(verdict(each.acked, each.failed))


def _not_begun(error: BaseException) -> None:
    raise InvariantViolated("an acker begins before it runs") from error
