"""Names of things that cross packages."""

from typing import NewType

CheckpointId = NewType("CheckpointId", int)
"""Grows by one per trigger within a run, across restarts too; the first is 1."""

Attempt = NewType("Attempt", int)
"""The fencing number of a run: one per start of its dataflow, only grows; the first is 1."""

RunId = NewType("RunId", str)
"""One submission or restore of a pipeline, which is also one lineage of recovery points."""

RequestId = NewType("RequestId", str)
"""An operator's request; chosen by the requester, so that delivering it twice is harmless."""

Uid = NewType("Uid", str)
"""The author's name of an operator. State is mapped by it, so it is compulsory and unique."""

SubtaskIndex = NewType("SubtaskIndex", int)
ChannelId = NewType("ChannelId", str)
"""`<upstream uid>[i]><downstream uid>.<input>[j]`, see `channel_id`."""

NO_CHECKPOINT = CheckpointId(0)


def channel_id(upstream: Uid, source: int, downstream: Uid, port: int, target: int) -> ChannelId:
    return ChannelId(f"{upstream}[{source}]>{downstream}.{port}[{target}]")
