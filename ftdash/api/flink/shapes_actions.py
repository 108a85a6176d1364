"""Bodies of clients' requests, and of their outcomes, as in Flink 2.3.

Requests are read leniently, as Flink's server does: unknown fields are ignored, missing ones have
their defaults.

Source: Flink, `rest.messages.job.savepoints`, `.checkpoints` and `rest.handler.async`.
"""

import msgspec

from ftdash.api.flink.shapes import Kebab, Status


class SavepointTrigger(Kebab, frozen=True, kw_only=True):
    target_directory: str | None = None
    cancel_job: bool | None = None
    format_type: str | None = msgspec.field(name="formatType", default=None)
    trigger_id: str | None = msgspec.field(name="triggerId", default=None)


class StopTrigger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    target_directory: str | None = None
    drain: bool | None = None
    format_type: str | None = None
    trigger_id: str | None = None


class CheckpointTrigger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    checkpoint_type: str | None = None
    trigger_id: str | None = None


class Disposal(Kebab, frozen=True, kw_only=True):
    savepoint_path: str | None = None


class ClientHeartbeat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    expired_timestamp: int = 0


class Triggered(Kebab, frozen=True, kw_only=True):
    request_id: str


class Empty(Kebab, frozen=True, kw_only=True): ...


class FailureCause(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """`serialized_throwable`: the Java serialization of the exception, in base64."""

    class_: str = msgspec.field(name="class")
    stack_trace: str
    serialized_throwable: str


class SavepointLocation(Kebab, frozen=True, kw_only=True):
    location: str


class SavepointFailure(Kebab, frozen=True, kw_only=True):
    failure_cause: FailureCause


class CheckpointNumber(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    checkpoint_id: int


class CheckpointFailure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    failure_cause: FailureCause


Outcome = SavepointLocation | SavepointFailure | CheckpointNumber | CheckpointFailure | Empty


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an operation; failure is in the outcome, never in the status."""

    status: Status
    operation: Outcome | None
