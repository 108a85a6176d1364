"""Decides the steps of an action on a Flink job: savepoint, stop, cancellation, checkpoint. Pure.

Guarantee: an action is sent once, or its row says that it was sent again. Each trigger carries an
id of ours, which is stored before the first request leaves. Flink takes a trigger id once, and
knows it for five minutes after its end; so the next process asks Flink for that id before it sends
anything. An action ends once, in one of three states; the third says that its outcome is not known.

Source: Flink, `DispatcherCachedOperationsHandler`, `rest.async.store-duration`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Literal

import msgspec

from ftdash.flink_clusters.bodies import TriggerResult
from ftdash.flink_clusters.politeness import is_over

SEND_WITHIN = timedelta(minutes=10)
"""If the cluster is silent for longer, the action is too old to be sent."""

SEND_AGAIN_WITHIN = timedelta(minutes=2)
"""Well within the five minutes for which Flink remembers a trigger id."""

OUTCOME_WITHIN = timedelta(minutes=15)
"""Counted from Flink's last word on the action; longer than checkpoints may take by default."""

DIRECTORY_LENGTH_MAX = 2_000


class TriggerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """An empty `directory` means the one that the cluster has configured.

    With `drain`, the sources end as if their input did, so the job must not be resumed.
    """

    directory: str = ""
    savepoint_format: Literal["CANONICAL", "NATIVE"] = "CANONICAL"
    drain: bool = False
    checkpoint_type: Literal["CONFIGURED", "FULL"] = "CONFIGURED"


class Next(Enum):
    SEND = auto()
    SEND_AGAIN = auto()  # under the same trigger id; the row says so
    ASK = auto()  # ask Flink for the outcome
    GIVE_UP = auto()  # nothing was sent
    FORGET = auto()  # it was sent, and its outcome cannot be found out


@dataclass(frozen=True, slots=True)
class Outcome:
    """An empty `problem` means that the action succeeded."""

    problem: str = ""
    location: str = ""
    checkpoint_id: int | None = None


def next_of_unsent(*, created_at: datetime, now: datetime) -> Next:
    return Next.SEND if now - created_at <= SEND_WITHIN else Next.GIVE_UP


def next_of_unknown(*, sent_at: datetime, was_accepted: bool, now: datetime) -> Next:
    """Decides after Flink's answer that it does not know the trigger id."""
    is_fresh = now - sent_at <= SEND_AGAIN_WITHIN
    return Next.SEND_AGAIN if is_fresh and not was_accepted else Next.FORGET


def next_of_silent(*, answered_at: datetime, now: datetime) -> Next:
    """Decides about a trigger that was sent to a cluster that does not answer."""
    return Next.ASK if now - answered_at <= OUTCOME_WITHIN else Next.FORGET


def outcome_of_trigger(answer: TriggerResult) -> Outcome | None:
    """Returns None while the action is under way."""
    if answer.status.id != "COMPLETED":
        return None
    done = answer.operation
    if done is None:
        return Outcome(problem="Flink says that it has ended, and not how.")
    if done.failure is not None:
        return Outcome(problem=f"Flink says: {done.failure.first_line}")
    return Outcome(location=done.location or "", checkpoint_id=done.checkpoint_id)


def outcome_of_cancel(state: str) -> Outcome | None:
    """Judges by the state of the job. Returns None while the cancellation is under way."""
    if state == "CANCELED":
        return Outcome()
    if is_over(state):
        return Outcome(problem=f"The job was not cancelled: it had ended by itself as {state}.")
    return None


def body_of(kind: str, options: TriggerOptions, trigger_id: str) -> dict[str, object]:
    """Returns the request, in the names that Flink has for each kind."""
    directory = options.directory or None
    if kind == "STOP":
        return {
            "targetDirectory": directory,
            "drain": options.drain,
            "formatType": options.savepoint_format,
            "triggerId": trigger_id,
        }
    if kind == "CHECKPOINT":
        return {"checkpointType": options.checkpoint_type, "triggerId": trigger_id}
    return {
        "target-directory": directory,
        "cancel-job": False,
        "formatType": options.savepoint_format,
        "triggerId": trigger_id,
    }


def paths_of(kind: str, jid: str, trigger_id: str) -> tuple[str, str]:
    """Returns the path to send a trigger to, and the path to ask for it."""
    sent = {"STOP": "stop", "CHECKPOINT": "checkpoints"}.get(kind, "savepoints")
    resource = "checkpoints" if kind == "CHECKPOINT" else "savepoints"
    return f"/jobs/{jid}/{sent}", f"/jobs/{jid}/{resource}/{trigger_id}"
