"""A recovery point as a pipeline sees it whose author has given operators other uids. Pure.

State belongs to a uid. If an author renames an operator, a person maps the old name to the new one
at the restore. The point itself stays as it is; each process that reads it for that run reads it
under the new names.
"""

from collections.abc import Mapping

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import ChannelId, Uid, channel_ends, channel_id, operator_id
from pipelines.domain.snapshots import Manifest, SubtaskSnapshot

NewNames = Mapping[Uid, Uid]
"""By the uid in the point."""


def renamed(manifest: Manifest, new_names: NewNames) -> Manifest:
    """The same point; two operators may exchange their uids.

    Raises Rejected if two operators would have the same uid.
    """
    if not new_names:
        return manifest
    known = (new_names.get(uid, uid) for uid in manifest.operator_ids)
    return msgspec.structs.replace(
        manifest,
        operator_ids={uid: operator_id(uid) for uid in known},
        subtasks=[_subtask(each, new_names) for each in manifest.subtasks],
        parallelisms={
            new_names.get(uid, uid): count for uid, count in manifest.parallelisms.items()
        },
    )


def _subtask(snapshot: SubtaskSnapshot, new_names: NewNames) -> SubtaskSnapshot:
    uids = [new_names.get(each.uid, each.uid) for each in snapshot.operators]
    if len(set(uids)) < len(uids):
        raise Rejected(f"Two operators of the point cannot have one uid: {', '.join(uids)}.")
    return msgspec.structs.replace(
        snapshot,
        vertex=new_names.get(snapshot.vertex, snapshot.vertex),
        operators=[
            msgspec.structs.replace(each, uid=new_names.get(each.uid, each.uid))
            for each in snapshot.operators
        ],
        in_flight=[
            msgspec.structs.replace(each, channel=_channel(each.channel, new_names))
            for each in snapshot.in_flight
        ],
    )


def _channel(channel: ChannelId, new_names: NewNames) -> ChannelId:
    ends = channel_ends(channel)
    return channel_id(
        new_names.get(ends.upstream, ends.upstream),
        ends.source,
        new_names.get(ends.downstream, ends.downstream),
        ends.port,
        ends.target,
    )
