"""The messages between subtasks and ackers: record batches on channels of their own.

One message covers many trees. It travels like records do: in order, against credit, and at a real
cost.
"""

from enum import IntEnum

import numpy as np
import pyarrow as pa

from pipelines.domain.elements import Records
from pipelines.domain.ids import ChannelId, Uid, channel_id
from pipelines.protocol.trees import Ids, Numbers

ACKER = Uid("storm:acker")  # not an operator's: a uid holds no colon
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
    """The trees that are acked, and those that failed."""
    numbers, is_acked = (column.to_numpy(zero_copy_only=False) for column in message.batch.columns)
    return numbers[is_acked], numbers[~is_acked]
