"""What can be wrong with a pipeline, and what a person should do about each. Pure.

The one table from cause to next step: pages, API and post-mortems read it here.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from ftdash.runs.fleet_answers import Concern
from pipelines.domain.commands import (
    Cancel,
    ChangeSettings,
    RequestKind,
    RestorePipeline,
    RetryNow,
    StopWithSavepoint,
    TriggerCheckpoint,
    UpgradePipeline,
)
from pipelines.domain.errors import FailureKind


class Cause(StrEnum):
    """A kind of failure, or a problem that is seen without one."""

    FUNCTION = FailureKind.FUNCTION.value
    MALFORMED_RECORD = FailureKind.MALFORMED_RECORD.value
    SLOT_LOST = FailureKind.SLOT_LOST.value
    DRIVER_LOST = FailureKind.DRIVER_LOST.value
    SLOTS_MISSING = FailureKind.SLOTS_MISSING.value
    RESTORE_STOOD_STILL = FailureKind.RESTORE_STOOD_STILL.value
    CHECKPOINTS_FAILED = FailureKind.CHECKPOINTS_FAILED.value
    DISK_FULL = FailureKind.DISK_FULL.value
    DISK_READ_ONLY = FailureKind.DISK_READ_ONLY.value
    SYSTEM_AWAY = FailureKind.SYSTEM_AWAY.value
    POINT_DAMAGED = FailureKind.POINT_DAMAGED.value
    INPUT_LOST = FailureKind.INPUT_LOST.value
    OUTPUT_LOST = FailureKind.OUTPUT_LOST.value
    STATE_UNMATCHED = FailureKind.STATE_UNMATCHED.value
    TARGET_TAKEN = FailureKind.TARGET_TAKEN.value
    CODE_BROKEN = FailureKind.CODE_BROKEN.value
    REFUSED = FailureKind.REFUSED.value
    CERTIFICATE_REFUSED = FailureKind.CERTIFICATE_REFUSED.value
    ENGINE = FailureKind.ENGINE.value
    UNKNOWN = FailureKind.UNKNOWN.value
    CLOCK_OFF = "clock-off"  # the clocks of two machines differ
    SILENT = "silent"  # nothing is heard of it
    STUCK = "stuck"  # it neither starts nor ends
    NO_CHECKPOINT = "no-checkpoint"  # for too long
    NO_OUTPUT = "no-output"  # for too long, although checkpoints complete
    TRANSACTION_EXPIRES = "transaction-expires"  # before it is committed
    CHECKPOINTS_FAIL = "checkpoints-fail"  # fewer than the run tolerates
    STUCK_CODE = "stuck-code"  # a function does not return
    SKEWED = "skewed"  # one subtask has most of the work
    BEHIND = "behind"  # more comes than is processed
    SLOW_CHECKPOINTS = "slow-checkpoints"  # compared with what is usual
    WATERMARK_STILL = "watermark-still"
    BACKPRESSURED = "backpressured"
    QUERY_FAILED = "query-failed"  # a watched Structured Streaming query; so are the next ones
    QUERY_LATE = "query-late"  # no batch for many times its usual interval
    QUERY_BEHIND = "query-behind"  # its lag grows, or is above what a person allows
    QUERY_SLOW = "query-slow"  # a batch took longer than a person allows
    CHECKPOINT_DAMAGED = "checkpoint-damaged"  # the doctor found damage in its directory
    SAVEPOINT_ALTERED = "savepoint-altered"
    FLINK_SILENT = "flink-silent"  # a watched Flink cluster; the next ones are of its jobs
    FLINK_JOB_FAILED = "flink-job-failed"
    FLINK_JOB_GONE = "flink-job-gone"  # the cluster no longer lists it, and it had not ended
    FLINK_RESTARTS = "flink-restarts"  # again and again
    FLINK_CHECKPOINTS_FAIL = "flink-checkpoints-fail"  # one after the other
    FLINK_SLOW_CHECKPOINTS = "flink-slow-checkpoints"  # compared with what is usual
    FLINK_NO_CHECKPOINT = "flink-no-checkpoint"  # for many intervals


class Place(StrEnum):
    """The page of the pipeline where a person takes the next step, by the name of its address."""

    NOWHERE = ""  # it is not a page: a disk, a server, a repository
    RESTORE = "recovery"
    METRICS = "pipeline-metrics"
    CHECKPOINTS = "checkpoints"
    GUARANTEE = "guarantee"


@dataclass(frozen=True, slots=True)
class Step:
    """A command that helps. Its form begins with the values in `given`."""

    label: str
    kind: RequestKind
    given: tuple[tuple[str, str], ...] = ()


PROPOSE, NAMES, GAPS = "propose", "names", "gaps"
"""A restore's form is filled in with what its preflight finds: uids to map, or gaps to accept."""

RETRY = Step("Retry now", RetryNow.kind)
RESTORE = Step("Restore the newest point", RestorePipeline.kind)
CANCEL = Step("End this run, to restore it with a change", Cancel.kind)
QUARANTINE_NOW = Step(
    "Set the record aside and go on",
    ChangeSettings.kind,
    (("execution.poison-records.policy", "quarantine"),),
)
"""For a run that still tries by itself."""

QUARANTINE = Step(
    "Set the record aside and go on",
    RestorePipeline.kind,
    (("settings", "execution.poison-records.policy: quarantine"),),
)
UNALIGNED = Step(
    "Restore with unaligned checkpoints",
    RestorePipeline.kind,
    (("settings", "execution.checkpointing.unaligned.enabled: true"),),
)
MAP_UID = Step("Restore, and map the old uid", RestorePipeline.kind, ((PROPOSE, NAMES),))
OLDER = Step("Restore another point", RestorePipeline.kind)
ACCEPT_GAP = Step("Restore, or accept the gap", RestorePipeline.kind, ((PROPOSE, GAPS),))
UPGRADE = Step("Deploy corrected code", UpgradePipeline.kind)
RESCALE = Step("Stop with a savepoint, to restore it wider", StopWithSavepoint.kind)
CHECKPOINT = Step("Trigger a checkpoint", TriggerCheckpoint.kind)
CHANGE = Step("Change settings", ChangeSettings.kind)

OF_QUERIES = frozenset(
    {
        Cause.QUERY_FAILED,
        Cause.QUERY_LATE,
        Cause.QUERY_BEHIND,
        Cause.QUERY_SLOW,
        Cause.CHECKPOINT_DAMAGED,
        Cause.SAVEPOINT_ALTERED,
    }
)
"""Causes of watched queries, which ftdash does not run."""

OF_FLINK_JOBS = frozenset(
    {
        Cause.FLINK_JOB_FAILED,
        Cause.FLINK_JOB_GONE,
        Cause.FLINK_RESTARTS,
        Cause.FLINK_CHECKPOINTS_FAIL,
        Cause.FLINK_SLOW_CHECKPOINTS,
        Cause.FLINK_NO_CHECKPOINT,
    }
)
OF_WATCHED = OF_QUERIES | OF_FLINK_JOBS | {Cause.FLINK_SILENT}
"""Causes of everything that ftdash watches and does not run."""

OUTSIDE = frozenset({"clock-off", "silent"} | {cause.value for cause in OF_WATCHED})
"""Causes whose cure is a command on the machine, which their sentence names."""


@dataclass(frozen=True, slots=True)
class Advice:
    title: str  # the incident in a few words
    cure: str  # one sentence or two, in the imperative
    place: Place = Place.NOWHERE
    recovers_alone: bool = False  # the run continues by itself once the problem is over
    meanwhile: str = ""  # what the run does, or what comes after the cure
    steps: tuple[Step, ...] = ()  # the best first; which of them are possible depends on the run

    @property
    def step(self) -> str:
        """The whole advice, as people read it."""
        return f"{self.cure} {self.meanwhile}".rstrip()


TRIES_AGAIN = "The run tries again by itself."

ADVICE: dict[Cause, Advice] = {
    Cause.FUNCTION: Advice(
        "A function of the pipeline raised an error",
        "Read the traceback and the record below. Correct the function, deploy it, and restore the"
        " newest point; or turn on the quarantine (execution.poison-records.policy), so"
        " that the run sets the record aside and continues.",
        Place.RESTORE,
        steps=(QUARANTINE_NOW, QUARANTINE, UPGRADE, CANCEL),
    ),
    Cause.MALFORMED_RECORD: Advice(
        "A source cannot read a record",
        "Correct the record where it lies, or turn on the quarantine"
        " (execution.poison-records.policy), so that the run sets it aside and continues.",
        Place.RESTORE,
        steps=(QUARANTINE_NOW, QUARANTINE, CANCEL),
    ),
    Cause.SLOT_LOST: Advice(
        "A slot died",
        "Look at the memory of the machine and at the log of the driver, to see why it died.",
        Place.METRICS,
        recovers_alone=True,
        meanwhile="The run restarts from its newest checkpoint by itself.",
        steps=(RETRY, RESTORE),
    ),
    Cause.DRIVER_LOST: Advice(
        "The driver died",
        "Look at the memory of the machine and at the log of the driver, to see why it died.",
        Place.RESTORE,
        recovers_alone=True,
        meanwhile="A worker starts another driver, which continues from the newest checkpoint.",
        steps=(RESTORE,),
    ),
    Cause.SLOTS_MISSING: Advice(
        "Spark does not bring up enough slots",
        "See that the cluster has free cores and memory for all slots; a restore with a lower"
        " parallelism needs fewer.",
        Place.RESTORE,
        recovers_alone=True,
        meanwhile="The run asks again by itself.",
        steps=(RETRY, RESTORE),
    ),
    Cause.RESTORE_STOOD_STILL: Advice(
        "The restore does not get on",
        "See that the storage answers and that the slots have disk and memory for their state."
        " execution.state-recovery.standstill-timeout says how long a restore may stand still.",
        Place.RESTORE,
        recovers_alone=True,
        steps=(RETRY, RESTORE),
    ),
    Cause.CHECKPOINTS_FAILED: Advice(
        "Too many checkpoints failed",
        "Look at why the newest checkpoints failed. A longer execution.checkpointing.timeout, or"
        " unaligned checkpoints, help when barriers wait behind records.",
        Place.CHECKPOINTS,
        recovers_alone=True,
        steps=(UNALIGNED, RETRY, CHANGE),
    ),
    Cause.DISK_FULL: Advice(
        "A disk is full",
        "Free space on the disk that the message names, or keep fewer checkpoints"
        " (execution.checkpointing.num-retained).",
        recovers_alone=True,
        meanwhile=TRIES_AGAIN,
        steps=(RETRY, RESTORE),
    ),
    Cause.DISK_READ_ONLY: Advice(
        "A disk is read-only",
        "Mount the disk that the message names writable again: systems do this to a disk after an"
        " error of its hardware.",
        recovers_alone=True,
        meanwhile=TRIES_AGAIN,
        steps=(RETRY, RESTORE),
    ),
    Cause.SYSTEM_AWAY: Advice(
        "A system that the run needs does not answer",
        "Start the system that the message names, or see that the network reaches it.",
        recovers_alone=True,
        meanwhile=TRIES_AGAIN,
        steps=(RETRY, RESTORE),
    ),
    Cause.POINT_DAMAGED: Advice(
        "A recovery point is damaged",
        "See that the storage is mounted and its disk is sound, and trigger a checkpoint, so that"
        " the run has a new point that is whole.",
        Place.RESTORE,
        recovers_alone=True,
        meanwhile="A recovery continues from the newest point that verifies.",
        steps=(CHECKPOINT, OLDER),
    ),
    Cause.INPUT_LOST: Advice(
        "A source no longer has the records that come next",
        "Restore a point that the source still reaches, or accept the gap: the verdict on a restore"
        " counts the records that are lost, and names the retention setting to raise.",
        Place.RESTORE,
        steps=(ACCEPT_GAP,),
    ),
    Cause.OUTPUT_LOST: Advice(
        "Output that a checkpoint counts on is gone",
        "Restore a point from before that output, so that it is computed again.",
        Place.RESTORE,
        steps=(OLDER,),
    ),
    Cause.STATE_UNMATCHED: Advice(
        "The recovery point does not fit the code",
        "Deploy the code that fits, or give the operator its former uid. The page of restores says"
        " which operator's state finds no place.",
        Place.RESTORE,
        steps=(MAP_UID, UPGRADE),
    ),
    Cause.TARGET_TAKEN: Advice(
        "Another run writes to the same target",
        "Stop the other run, which the message names, or give this pipeline a target of its own;"
        " then restore the newest point.",
        Place.RESTORE,
        steps=(RESTORE,),
    ),
    Cause.CODE_BROKEN: Advice(
        "The pipeline's code does not load",
        "Correct the code where the traceback below points to, deploy it, and start again.",
        Place.RESTORE,
        steps=(UPGRADE, RESTORE),
    ),
    Cause.REFUSED: Advice(
        "The run refuses what it was given",
        "Change what the message names, a parameter or a setting, and restore the newest point.",
        Place.RESTORE,
        steps=(RESTORE,),
    ),
    Cause.CERTIFICATE_REFUSED: Advice(
        "A certificate is refused",
        "Put a valid certificate, of the same authority, in the place of the one that the message"
        " names, on every machine.",
        recovers_alone=True,
        meanwhile=TRIES_AGAIN,
        steps=(RETRY, RESTORE),
    ),
    Cause.ENGINE: Advice(
        "A rule of the engine does not hold",
        "This is a defect of ftdash. Keep the journal and the log of the driver, report both, and"
        " restore the newest point.",
        Place.RESTORE,
        steps=(RESTORE,),
    ),
    Cause.UNKNOWN: Advice(
        "The run failed",
        "Read the message and the log of the driver, then choose a point to restore.",
        Place.RESTORE,
        steps=(RESTORE,),
    ),
    Cause.CLOCK_OFF: Advice(
        "The clocks of two machines differ",
        "Set the clock of the machine that is wrong, and let NTP keep it right (timedatectl"
        " set-ntp true).",
        recovers_alone=True,
        meanwhile="The pipeline continues; ages and states on these pages are wrong until then.",
    ),
    Cause.SILENT: Advice(
        "Nothing is heard of the pipeline",
        "Start the process that the message names; the pipeline itself may still be running.",
        recovers_alone=True,
    ),
    Cause.STUCK: Advice(
        "The run neither starts nor ends",
        "Look at the log of the driver. A run that does not start often waits for cores of the"
        " cluster; one that does not end is killed after a while.",
        Place.METRICS,
        recovers_alone=True,
        steps=(CANCEL,),
    ),
    Cause.NO_CHECKPOINT: Advice(
        "No checkpoint completes",
        "Look at which subtask the newest checkpoint waits for: it is named on its page.",
        Place.CHECKPOINTS,
        recovers_alone=True,
        steps=(CHECKPOINT, CANCEL),
    ),
    Cause.NO_OUTPUT: Advice(
        "No output is committed",
        "Look at which sink waits for its commit, and see that its target answers.",
        Place.GUARANTEE,
        recovers_alone=True,
        steps=(CHECKPOINT, CANCEL),
    ),
    Cause.TRANSACTION_EXPIRES: Advice(
        "A transaction is about to expire",
        "Trigger a checkpoint, which commits it. See why checkpoints are rare or fail; a longer"
        " transaction timeout of the sink leaves more time.",
        Place.GUARANTEE,
        recovers_alone=True,
        steps=(CHECKPOINT, CHANGE),
    ),
    Cause.CHECKPOINTS_FAIL: Advice(
        "Checkpoints fail",
        "Look at why the newest checkpoints failed, before the run tolerates no more of them.",
        Place.CHECKPOINTS,
        recovers_alone=True,
        steps=(CHANGE, CHECKPOINT),
    ),
    Cause.STUCK_CODE: Advice(
        "A function of the pipeline does not return",
        "Look at the line that the message names: a lock, a loop without an end, or a call without"
        " a timeout. End this run, deploy corrected code, and restore the newest point.",
        Place.METRICS,
        recovers_alone=True,
        meanwhile="No checkpoint completes until it returns.",
        steps=(CANCEL, UPGRADE),
    ),
    Cause.SKEWED: Advice(
        "One subtask has most of the work",
        "Look at the hottest keys. Aggregate them in two steps, with a second part in the key, or"
        " filter a key that should not be there. A higher parallelism does not split one key.",
        Place.METRICS,
        recovers_alone=True,
        steps=(UPGRADE, RESCALE),
    ),
    Cause.BEHIND: Advice(
        "The pipeline falls behind its input",
        "Stop with a savepoint and restore it with a higher parallelism, or make the busiest"
        " operator faster.",
        Place.METRICS,
        recovers_alone=True,
        steps=(RESCALE,),
    ),
    Cause.SLOW_CHECKPOINTS: Advice(
        "Checkpoints take much longer than usual",
        "Look at what the newest one waits for. Barriers behind records: turn on unaligned"
        " checkpoints. Uploads: look at the storage.",
        Place.CHECKPOINTS,
        recovers_alone=True,
        steps=(CHANGE, RESCALE),
    ),
    Cause.WATERMARK_STILL: Advice(
        "Event time stands still",
        "See why the source that the message names sends nothing newer. If it may be silent, give"
        " it an idle timeout (with_idleness), so that the others continue without it.",
        Place.METRICS,
        recovers_alone=True,
        steps=(UPGRADE, RESCALE),
    ),
    Cause.BACKPRESSURED: Advice(
        "An operator holds up the ones before it",
        "Look at the subtasks of the operator behind it: one that is busy while the others are"
        " idle has most of the keys. Otherwise restore with a higher parallelism.",
        Place.METRICS,
        recovers_alone=True,
        steps=(RESCALE,),
    ),
    Cause.QUERY_FAILED: Advice(
        "The query failed",
        "Read the exception on its page and correct the cause. manage.py watch check says if its"
        " checkpoint is whole; if it is, start the job again from it. If the job wrote wrong rows,"
        " rewind it with manage.py watch fork.",
    ),
    Cause.QUERY_LATE: Advice(
        "The query commits no batch",
        "See if the driver of the job lives, and look at the running tasks of its newest batch in"
        " Spark's page. manage.py watch check says if its checkpoint is whole before you restart"
        " the job.",
    ),
    Cause.QUERY_BEHIND: Advice(
        "The query falls behind its input",
        "Look at which phase of the batches grew, on its page. Give the job more cores, or limit"
        " each batch (maxOffsetsPerTrigger, maxFilesPerTrigger) so that it does not fail;"
        " manage.py watch state shows if its state has grown.",
    ),
    Cause.QUERY_SLOW: Advice(
        "A batch of the query took too long",
        "Look at which phase of the batches grew, on its page, and give the job more cores or limit"
        " each batch. If this is usual for the query, allow it: manage.py watch limits NAME"
        " --batch-max-s SECONDS.",
    ),
    Cause.CHECKPOINT_DAMAGED: Advice(
        "The checkpoint of the query is damaged",
        "Do not delete files of it by hand. manage.py watch check names each damage with its next"
        " step; manage.py watch fork makes a sound copy of the newest complete batch or of a"
        " savepoint, from which you start the job.",
    ),
    Cause.SAVEPOINT_ALTERED: Advice(
        "A savepoint of the query is not as it was written",
        "Take another one with manage.py watch savepoint take while the query has the batch, and"
        " look at the storage: something has changed files that ftdash never changes.",
    ),
    Cause.FLINK_SILENT: Advice(
        "The Flink cluster does not answer",
        "See that its JobManager runs and that this server may reach it. If it has moved, give its"
        " new address under the same name: manage.py watch_flink add NAME ADDRESS. The history and"
        " the catalogue of points stay here.",
    ),
    Cause.FLINK_JOB_FAILED: Advice(
        "The Flink job failed",
        "Read the exception on its page and correct the cause. Then start the job again from the"
        " newest point that its page lists: flink run -s PATH.",
    ),
    Cause.FLINK_JOB_GONE: Advice(
        "The Flink cluster has lost the job",
        "Its JobManager was probably started again without high availability. Start the job again"
        " from the newest point that its page lists: flink run -s PATH. Then configure"
        " high-availability.type in Flink, so that a JobManager takes its jobs over.",
    ),
    Cause.FLINK_RESTARTS: Advice(
        "The Flink job restarts again and again",
        "Read the newest exception on its page: it names the task, and the TaskManager if Flink"
        " knows it. A TaskManager that was lost: look at its memory and its log. An error of the"
        " code: cancel the job (manage.py watch_flink cancel NAME JOB) and start corrected code"
        " from its newest point.",
    ),
    Cause.FLINK_CHECKPOINTS_FAIL: Advice(
        "Checkpoints of the Flink job fail",
        "Open the newest failed one on its page and see which subtasks have not acknowledged. If"
        " checkpoints expire while operators are busy, set"
        " execution.checkpointing.unaligned.enabled or a longer execution.checkpointing.timeout"
        " in Flink; otherwise see that the TaskManagers can write to the storage. Then try one:"
        " manage.py watch_flink checkpoint NAME JOB.",
    ),
    Cause.FLINK_SLOW_CHECKPOINTS: Advice(
        "Checkpoints of the Flink job take much longer than usual",
        "Open the newest one on its page. A long start delay or alignment: an operator is busy, so"
        " give it a higher parallelism, or set execution.checkpointing.unaligned.enabled in Flink."
        " A long upload: look at the storage. Before you restart the job, save it: manage.py"
        " watch_flink savepoint NAME JOB.",
    ),
    Cause.FLINK_NO_CHECKPOINT: Advice(
        "The Flink job completes no checkpoint",
        "Look on its page at the checkpoint under way and at the operators with backpressure. A"
        " failure now costs everything since the last one; try one by hand: manage.py watch_flink"
        " checkpoint NAME JOB.",
    ),
}


def advice_on(cause: Cause, *, has_failed: bool) -> Advice:
    """`has_failed` means that the run has given up, so nothing happens by itself any more."""
    advice = ADVICE[cause]
    if not (has_failed and advice.recovers_alone):
        return advice
    return replace(
        advice,
        meanwhile="Then restore the newest point.",
        place=advice.place or Place.RESTORE,
        recovers_alone=False,
        steps=(*advice.steps, *(() if RESTORE in advice.steps else (RESTORE,))),
    )


OF_CONCERN: dict[Concern, Cause] = {
    Concern.FAILED: Cause.UNKNOWN,
    Concern.DRIVER_LOST: Cause.DRIVER_LOST,
    Concern.CLOCK_OFF: Cause.CLOCK_OFF,
    Concern.SILENT: Cause.SILENT,
    Concern.STUCK: Cause.STUCK,
    Concern.NO_CHECKPOINT: Cause.NO_CHECKPOINT,
    Concern.NO_OUTPUT: Cause.NO_OUTPUT,
    Concern.TRANSACTION_EXPIRES: Cause.TRANSACTION_EXPIRES,
    Concern.CHECKPOINTS_FAIL: Cause.CHECKPOINTS_FAIL,
    Concern.SOURCE_AWAY: Cause.SYSTEM_AWAY,
    Concern.STUCK_CODE: Cause.STUCK_CODE,
    Concern.SKEWED: Cause.SKEWED,
    Concern.BEHIND: Cause.BEHIND,
    Concern.SLOW_CHECKPOINTS: Cause.SLOW_CHECKPOINTS,
    Concern.WATERMARK_STILL: Cause.WATERMARK_STILL,
    Concern.BACKPRESSURED: Cause.BACKPRESSURED,
}
"""The other concerns follow from failures, which have causes of their own."""

OF_FAILURES = frozenset(Cause(kind.value) for kind in FailureKind)
