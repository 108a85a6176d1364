"""Names in words what a slot's message would change about the results of a run, if anything.

When the slot's attempt is over, such a claim is refused where the operator can see it. The other
messages (samples, and the failures that follow from the end of the attempt) come with every end.
"""

from pipelines.runtime.control import (
    Acknowledged,
    Committed,
    Declined,
    Ended,
    FromSlot,
    SourcesEnded,
)


def claim_of(message: FromSlot) -> str | None:
    match message:
        case Acknowledged(checkpoint_id=checkpoint_id, snapshot=snapshot):
            who = f"{snapshot.vertex}[{snapshot.subtask}]"
            return f"an acknowledgement of checkpoint {checkpoint_id} by {who}"
        case Declined(checkpoint_id=checkpoint_id, vertex=vertex, subtask=subtask):
            return f"a decline of checkpoint {checkpoint_id} by {vertex}[{subtask}]"
        case Committed(checkpoint_id=checkpoint_id, vertex=vertex, subtask=subtask):
            return f"a commit of checkpoint {checkpoint_id} by {vertex}[{subtask}]"
        case SourcesEnded(vertex=vertex, subtask=subtask):
            return f"the end of the source {vertex}[{subtask}]"
        case Ended():
            return "the end of all its subtasks"
        case _:
            return None
