"""Rows of pipelines, runs, requests and what went wrong.

There are two writers, which never write the same column: the projector writes what the engine
reported, the services write what people asked for and what the control plane did about it.
"""

from datetime import datetime
from typing import Self

import msgspec
from django.db import models

from pipelines.domain.commands import ADDRESS, AnyCommand, Command
from pipelines.domain.errors import FailureKind
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode, JobStatus
from pipelines.domain.texts import LABEL_LENGTH_MAX


class DesiredState(models.TextChoices):
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class RequestPhase(models.TextChoices):
    PENDING = "PENDING", "waiting for delivery"
    DELIVERED = "DELIVERED", "delivered to the driver"
    ACCEPTED = "ACCEPTED", "under way"
    SUCCEEDED = "SUCCEEDED", "succeeded"
    FAILED = "FAILED", "failed"
    REJECTED = "REJECTED", "rejected"


OPEN_PHASES = (RequestPhase.PENDING, RequestPhase.DELIVERED, RequestPhase.ACCEPTED)
TERMINAL_STATUSES = [status.value for status in JobStatus if status.is_terminal]


class RunsCode(models.Model):
    """A row that says which package holds the flow."""

    code = models.JSONField(null=True)  # ShippedCode as JSON; null: an installed package

    class Meta:
        abstract = True

    @property
    def shipped_code(self) -> ShippedCode | None:
        return None if self.code is None else msgspec.convert(self.code, ShippedCode)

    @property
    def code_described(self) -> str:
        """The package in words for people; empty for an installed package."""
        code = self.shipped_code
        return "" if code is None else code.described


class Pipeline(RunsCode):
    """A flow with a name, and the values that its next run starts with."""

    name = models.SlugField(max_length=80, unique=True)
    flow = models.CharField(max_length=80)
    parallelism = models.PositiveIntegerField(default=1)
    max_parallelism = models.PositiveIntegerField(default=DEFAULT_MAX_PARALLELISM)
    parameters = models.JSONField(default=dict)  # str to str, validated by the flow
    settings = models.JSONField(default=dict)  # str to str, Flink's keys
    allows_faults = models.BooleanField(default=False)  # on purpose, to see that it recovers
    labels = models.JSONField(default=list)  # texts that people group pipelines by, sorted
    created_at = models.DateTimeField()
    version = models.PositiveBigIntegerField(default=0)  # grows with every change by a service

    class Meta:
        permissions = (("operate", "May act on pipelines (admin role)"),)
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Run(RunsCode):
    """One submission or restore: one lineage, one journal, at most one driver at a time."""

    # Written by services.
    pipeline = models.ForeignKey(Pipeline, on_delete=models.PROTECT, related_name="runs")
    run_id = models.CharField(max_length=80, unique=True)
    number = models.PositiveIntegerField()  # 1, 2, ... within the pipeline
    desired = models.CharField(
        max_length=10, choices=DesiredState.choices, default=DesiredState.RUNNING
    )
    parallelism = models.PositiveIntegerField()
    max_parallelism = models.PositiveIntegerField()
    master = models.CharField(max_length=200)
    parameters = models.JSONField(default=dict)
    settings = models.JSONField(default=dict)
    restored_from = models.TextField(null=True)  # directory of the point
    claim_mode = models.CharField(max_length=10, default=ClaimMode.NO_CLAIM.value)
    allow_non_restored_state = models.BooleanField(default=False)
    first_checkpoint_id = models.PositiveBigIntegerField(default=1)
    replayed_sources = models.JSONField(default=list)  # whose quarantine it reads again
    renamed_uids = models.JSONField(default=dict)  # of operators in that point, to those of now
    accepted_gaps = models.JSONField(default=list)  # texts: input behind that point that is lost
    puts_back = models.BooleanField(default=False)  # it only undoes the start of the run before it
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="forks")
    created_at = models.DateTimeField()
    driver_start_count = models.PositiveIntegerField(default=0)
    driver_starts_in_row = models.PositiveIntegerField(default=0)  # without a new checkpoint
    driver_started_at = models.DateTimeField(null=True)
    launched_pid = models.PositiveIntegerField(null=True)
    launched_process_started_at = models.FloatField(null=True)  # seconds after the boot
    driver_note = models.TextField(default="")  # what the control plane last did, and why
    driver_silence = models.TextField(default="")  # it shows no sign of life now; a sentence
    driver_due_at = models.DateTimeField(null=True)  # when another one starts, while that waits
    driver_waits_since = models.DateTimeField(null=True)
    stop_requested_at = models.DateTimeField(null=True)

    # Written by the history of journals.
    journal_begins = models.PositiveBigIntegerField(default=0)  # what was before is deleted

    # Written by the projector.
    status = models.CharField(max_length=20, default=JobStatus.CREATED.value)
    reason = models.TextField(default="")
    attempt = models.PositiveIntegerField(default=0)
    guarantee = models.TextField(default="")
    guarantee_reason = models.TextField(default="")
    changed_settings = models.JSONField(null=True)  # all in effect since a person changed some
    vertices = models.JSONField(default=list)  # VertexShape as JSON, topological order
    transaction_timeouts_ms = models.JSONField(default=dict)  # by sink, where its target has one
    start_undone = models.BooleanField(default=False)  # output of earlier runs is back
    input_gaps = models.JSONField(default=list)  # Gap as JSON: input that the run went past
    slots = models.JSONField(default=dict)  # slot to {"pid", "host"}, the connected ones
    driver_pid = models.PositiveIntegerField(null=True)
    driver_lost_at = models.DateTimeField(null=True)  # last word of a driver that was replaced
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    last_event_at = models.DateTimeField(null=True)
    clock_behind_s = models.FloatField(
        default=0.0
    )  # of the driver, by what its journal was written
    last_checkpoint_id = models.PositiveBigIntegerField(null=True)  # newest completed
    last_completed_at = models.DateTimeField(null=True)
    last_committed_at = models.DateTimeField(null=True)
    records_per_s = models.FloatField(default=0.0)
    reached_records = models.PositiveBigIntegerField(null=True)  # read by sources, in any attempt
    restored_records = models.PositiveBigIntegerField(null=True)  # where the attempt began
    restoring = models.JSONField(null=True)  # RestoreProgress as JSON, while a point is read
    restart_at = models.DateTimeField(null=True)  # when it continues, while it waits on purpose
    next_restart_delay_ms = models.FloatField(null=True)  # of a failure now
    watermark_ms = models.BigIntegerField(null=True)
    counters = models.JSONField(default=dict)
    restart_count = models.PositiveIntegerField(default=0)  # attempts after the first
    journal_offset = models.PositiveBigIntegerField(default=0)  # bytes folded so far
    last_sequence = models.PositiveBigIntegerField(default=0)
    projection_error = models.TextField(default="")  # the projection of this run has stopped
    journal_gap = models.TextField(default="")  # what was deleted before it was read; a sentence
    version = models.PositiveBigIntegerField(default=0)  # grows with every folded batch

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.UniqueConstraint(fields=("pipeline", "number"), name="run_number"),
            models.UniqueConstraint(
                fields=("pipeline",),
                condition=~models.Q(status__in=TERMINAL_STATUSES),
                name="one_live_run_per_pipeline",
            ),
        )

    def __str__(self) -> str:
        return self.run_id

    @property
    def is_terminal(self) -> bool:
        return JobStatus(self.status).is_terminal

    @property
    def goes_on_at(self) -> datetime | None:
        """When its next attempt, or its next driver, begins; None: it does not wait on purpose."""
        return self.driver_due_at or self.restart_at

    @property
    def slot_count(self) -> int:
        """An operator may have a higher parallelism than the run, so this is the highest of all."""
        own = [vertex.get("parallelism") for vertex in self.vertices]
        return max((each or self.parallelism for each in own), default=self.parallelism)

    @property
    def settings_now(self) -> dict[str, str]:
        """The settings of its start, or those that people have made of them since."""
        now: dict[str, str] = self.changed_settings or self.settings
        return now


class Request(models.Model):
    """A person's request: who, when, why, and its one terminal phase. Also the audit log."""

    request_id = models.CharField(max_length=80, unique=True)
    kind = models.CharField(max_length=30)  # that of its command, to look for
    pipeline = models.ForeignKey(Pipeline, on_delete=models.PROTECT, related_name="requests")
    run = models.ForeignKey(Run, null=True, on_delete=models.PROTECT, related_name="requests")
    command_json = models.JSONField()  # with its tag, without its address
    requester = models.CharField(max_length=150)
    reason = models.TextField(default="")
    phase = models.CharField(
        max_length=12, choices=RequestPhase.choices, default=RequestPhase.PENDING
    )
    message = models.TextField(default="")
    path = models.TextField(null=True)  # the savepoint that was taken
    checkpoint_id = models.PositiveBigIntegerField(null=True)
    created_at = models.DateTimeField()
    delivered_at = models.DateTimeField(null=True)
    accepted_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    deadline_at = models.DateTimeField()

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=("phase", "created_at"), name="request_phase"),
            models.Index(fields=("created_at", "id"), name="request_at"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.request_id}"

    @classmethod
    def of(cls, command: Command, **columns: object) -> Self:
        """Returns a new row, not saved."""
        values = msgspec.to_builtins(command)
        kept = {name: value for name, value in values.items() if name not in ADDRESS}
        return cls(kind=command.kind, command_json=kept, **columns)

    @property
    def command(self) -> AnyCommand:
        """The command as the driver gets it."""
        address = (RequestId(self.request_id), self.requester, self.reason)
        values = {**self.command_json, **dict(zip(ADDRESS, address, strict=True))}
        return msgspec.convert(values, AnyCommand)  # type: ignore[no-any-return]


class UpgradeStep(models.TextChoices):
    CHECKING = "CHECKING", "check the new code"
    STOPPING = "STOPPING", "stop with a savepoint"
    STARTING = "STARTING", "start the new code"
    WATCHING = "WATCHING", "watch its first checkpoints"
    CANCELING = "CANCELING", "end the new code"
    RESTORING = "RESTORING", "start the previous code"
    ENDED = "ENDED", "ended"


class Upgrade(models.Model):
    """How far an upgrade has come. Each step is found again from this row and its requests."""

    request = models.OneToOneField(Request, on_delete=models.PROTECT, related_name="upgrade")
    pipeline = models.ForeignKey(Pipeline, on_delete=models.PROTECT, related_name="upgrades")
    old_run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="+")
    old_code = models.JSONField(null=True)  # ShippedCode as JSON; null: an installed package
    new_code = models.JSONField()
    checkpoints = models.PositiveIntegerField()  # to watch
    timeout_ms = models.PositiveBigIntegerField()  # for those
    step = models.CharField(
        max_length=12, choices=UpgradeStep.choices, default=UpgradeStep.CHECKING
    )
    step_at = models.DateTimeField()  # when that step began
    steps = models.JSONField(
        default=list
    )  # those before: {"step", "at", "ended_at", "text", "trace"}
    check_tries = models.PositiveIntegerField(default=0)  # processes started to check the code
    checker = models.JSONField(null=True)  # Owner as JSON: the newest of these processes
    checked = models.JSONField(null=True)  # Checked as JSON
    stop_tries = models.PositiveIntegerField(default=0)
    savepoint = models.TextField(null=True)
    new_run = models.ForeignKey(Run, null=True, on_delete=models.PROTECT, related_name="+")
    back_run = models.ForeignKey(Run, null=True, on_delete=models.PROTECT, related_name="+")
    why_back = models.TextField(default="")  # why it goes back; a sentence
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("pipeline",),
                condition=models.Q(ended_at=None),
                name="one_upgrade_at_a_time",
            ),
        )

    def __str__(self) -> str:
        return f"upgrade {self.request_id}: {self.step}"


class PointInspection(models.Model):
    """How far a worker has read a recovery point, byte for byte, for people who may restore it."""

    path = models.TextField(unique=True)
    files_read = models.PositiveIntegerField(default=0)
    files = models.PositiveIntegerField(null=True)  # null: nothing is known of it yet
    bytes_read = models.PositiveBigIntegerField(default=0)
    bytes = models.PositiveBigIntegerField(default=0)
    problem = models.TextField(default="")
    waiting_for = models.TextField(default="")  # why it cannot go on now
    moved_at = models.DateTimeField()  # when it last made progress, or was asked to
    ended_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.path}: {self.files_read}/{self.files}"


class PointComparison(models.Model):
    """How far a worker has compared the contents of two points, and the differences so far."""

    left = models.TextField()  # their paths
    right = models.TextField()
    requester = models.CharField(max_length=150)
    parts_done = models.PositiveIntegerField(default=0)
    parts = models.PositiveIntegerField(null=True)  # null: nothing is known of them yet
    found = models.JSONField(default=list)  # StateDifference as JSON
    problem = models.TextField(default="")
    waiting_for = models.TextField(default="")  # why it cannot go on now
    waiting_since = models.DateTimeField(null=True)  # null: it is not waiting
    asked_at = models.DateTimeField()
    moved_at = models.DateTimeField()  # when it last made progress, or was asked to
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("left", "right"), name="comparison_of_two_points"),
        )

    def __str__(self) -> str:
        return f"{self.left} beside {self.right}: {self.parts_done}/{self.parts}"


class PointLabel(models.Model):
    """A person's name for a savepoint: one that is there, or the one that a request will take.

    A row by `path` counts before a row by `request_id`; an empty label removes the label.
    """

    path = models.TextField(null=True, unique=True)
    request_id = models.CharField(max_length=80, null=True, unique=True)
    label = models.CharField(max_length=LABEL_LENGTH_MAX)
    labelled_by = models.CharField(max_length=150)
    labelled_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("labelled_at", "id"), name="pointlabel_at"),)

    def __str__(self) -> str:
        return f"{self.path or self.request_id}: {self.label}"


class JournalRow(models.Model):
    """One row for one journal line, by run and sequence."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE)
    sequence = models.PositiveBigIntegerField()
    attempt = models.PositiveIntegerField()
    at = models.DateTimeField()

    class Meta:
        abstract = True
        ordering = ("sequence",)
        constraints = (
            models.UniqueConstraint(fields=("run", "sequence"), name="%(class)s_of_journal"),
        )
        indexes = (models.Index(fields=("at", "id"), name="%(class)s_at"),)  # of the log of events


class StatusChange(JournalRow):
    status = models.CharField(max_length=20)
    reason = models.TextField(default="")


class Failure(JournalRow):
    """Something died."""

    cause = models.TextField()
    vertex = models.CharField(max_length=200, null=True)
    subtask = models.PositiveIntegerField(null=True)
    slot = models.PositiveIntegerField(null=True)
    detail = models.TextField(default="")
    operator = models.CharField(max_length=200, null=True)  # whose function raised
    origin = models.JSONField(null=True)  # RecordOrigin as JSON: what it was working on
    author_trace = models.TextField(default="")  # the frames of the author's code
    record = models.TextField(default="")  # its values, if the run's settings show them
    kind = models.CharField(max_length=30, default=FailureKind.UNKNOWN.value)  # FailureKind


class RestoreRefusal(JournalRow):
    """A recovery point did not verify, at a recovery or when it was looked at again."""

    path = models.TextField()
    message = models.TextField()
    kind = models.CharField(max_length=30, default=FailureKind.UNKNOWN.value)  # FailureKind


class PointsVerification(JournalRow):
    """Every byte of the retained points was read again, as scheduled or on request."""

    whole = models.PositiveIntegerField()
    damaged = models.PositiveIntegerField()
    not_counted = models.PositiveIntegerField(default=0)  # deleted meanwhile, or no answer
    duration_ms = models.FloatField()


class DamageFinding(JournalRow):
    """Files that checkpoints share were found damaged, or whole again."""

    files = models.JSONField(default=list)  # found damaged
    points = models.JSONField(default=list)  # paths of those that refer to one of them
    mended = models.JSONField(default=list)  # found whole again
    remembered_count = models.PositiveIntegerField()  # files that the run knew as damaged from then
    found_by = models.CharField(max_length=20)  # `DamageFinder`
    message = models.TextField()


class ZombieRefusal(JournalRow):
    """A message, commit or connection of an older attempt was refused."""

    zombie_attempt = models.PositiveIntegerField()
    what = models.TextField()


class SupersededOutput(JournalRow):
    """Output that was committed after the restored point and set aside."""

    sink = models.CharField(max_length=200)
    files = models.PositiveIntegerField()
    moved_to = models.TextField()


class RepeatedOutput(JournalRow):
    """Records that a target has already, and that the run publishes a second time."""

    sink = models.CharField(max_length=200)
    target = models.TextField()
    records = models.PositiveBigIntegerField(null=True)  # null: not known
    is_at_most = models.BooleanField(default=False)


class Leftover(JournalRow):
    """Output that was never committed: cleaned up from a target, or kept there and why."""

    sink = models.CharField(max_length=200)
    target = models.TextField()
    what = models.TextField()  # in the plural
    count = models.PositiveIntegerField()
    size_bytes = models.PositiveBigIntegerField(null=True)
    runs = models.JSONField(default=list)  # that left it, or some of them
    run_count = models.PositiveIntegerField()
    why_kept = models.TextField(default="")  # empty: it was cleaned up

    @property
    def left_by(self) -> str:
        """`run a, run b and 3 more`; empty when that is not known."""
        named = ", ".join(f"run {run_id}" for run_id in self.runs)
        more = self.run_count - len(self.runs)
        return f"{named} and {more} more" if more else named


class TargetTakeover(JournalRow):
    """The run took over a target that a run of another installation held."""

    sink = models.CharField(max_length=200)
    target = models.TextField()
    from_run = models.CharField(max_length=200)
    from_installation = models.TextField()  # empty: not known
    epoch = models.PositiveBigIntegerField()

    @property
    def loser(self) -> str:
        """`run a of installation b`"""
        of = f" of installation {self.from_installation}" if self.from_installation else ""
        return f"run {self.from_run}{of}"


class QuarantinedRecord(JournalRow):
    """A source's record that no operator receives any more, and where its line is written."""

    source = models.CharField(max_length=200)
    split = models.TextField()
    offset = models.BigIntegerField()
    operator = models.CharField(max_length=200)
    error_type = models.TextField()
    error = models.TextField()
    directory = models.TextField()
    limit = models.PositiveIntegerField()  # of the run


class Recovery(JournalRow):
    """The recovery to one attempt after a failure, by phase; its line is the first phase's."""

    phases = models.JSONField(default=list)  # [{"phase", "duration_ms", "at_ms"}], as reached
    restored_checkpoint_id = models.PositiveBigIntegerField(null=True)
    restored_path = models.TextField(null=True)
    records_to_replay = models.PositiveBigIntegerField(null=True)
    started_at = models.DateTimeField()
    running_at = models.DateTimeField(null=True)  # all subtasks run on restored state
    ended_at = models.DateTimeField(null=True)  # the last phase was reached

    class Meta(JournalRow.Meta):
        indexes = (models.Index(fields=("started_at", "id"), name="recovery_started_at"),)
