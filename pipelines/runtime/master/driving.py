"""Drives one run from its directory to its end, under a lease, on any host that starts slots.

Reads the spec, and either refuses it with a reason or hosts the job master until the run is over.
Knows nothing of Spark: the caller passes in where slots run.
"""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from queue import SimpleQueue
from random import Random
from typing import NoReturn

import msgspec

from pipelines.bus.announce import open_announcer
from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter, last_event
from pipelines.bus.lease import Lease, LeaseLost
from pipelines.bus.run_log import RunLog
from pipelines.connectors.files.data_frame import DataFrameRows
from pipelines.connectors.in_process import Collect
from pipelines.domain.clock import Clock
from pipelines.domain.errors import UNDECODABLE, BrokenCode, Rejected, Retryable, kind_of
from pipelines.domain.events import FailureOccurred, JobStatusChanged, RunEnded, SettingsChanged
from pipelines.domain.faults import parse_faults
from pipelines.domain.guarantees import check_required, end_to_end
from pipelines.domain.ids import Attempt, Uid
from pipelines.domain.run import WAITED, RunDirectory, RunSpec, SnapshotPlaces
from pipelines.domain.settings import Settings, check_parallelism
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import find_flow
from pipelines.packages.loading import activate
from pipelines.packages.store import CodeStore
from pipelines.protocol.commit import AttemptFence
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.faults import Faults, check_permission
from pipelines.runtime.logged_lines import kept_log
from pipelines.runtime.master.job_events import JobEvent, WatchedExecutor
from pipelines.runtime.master.job_master import JobMaster
from pipelines.runtime.master.run_context import (
    EventQueue,
    KeepsDataFrames,
    RunBeginning,
    RunContext,
    RunRecord,
    StageHost,
    StartGivenUp,
)
from pipelines.runtime.master.signs_of_life import ControlLoop, SignsOfLife
from pipelines.runtime.master.slots.control_server import ControlServer
from pipelines.runtime.master.start.run_opening import KeptRows, fits_no_point
from pipelines.runtime.networking import SlotAddress, driver_networking, load_tls
from pipelines.storage.roots import check_placement, configured_roots
from pipelines.storage.stores import CheckpointStores
from pipelines.stream import Pipeline
from pipelines.stream.declaration import Flow

OpenStages = Callable[[RunSpec, Callable[[JobEvent], None]], AbstractContextManager[StageHost]]
"""Returns a context that runs the stage host during the run. It may raise StartGivenUp instead."""

EXECUTOR_THREADS = 2


class NoSlots:
    """Implements `StageHost` for a run that fails before it needs a slot. The real host takes
    seconds to start, and a person waits for the reason of the failure."""

    def start(self, address: SlotAddress, slot_count: int) -> None:
        raise Retryable("A recovery point fits the code by now")

    def cancel(self, address: SlotAddress) -> None:
        pass


EXIT_LEASE_HELD = 3
"""The exit status of a driver process whose run another driver has taken over."""

log = logging.getLogger("ftdash.driver")

_ending = threading.Lock()  # held from the log line until the process has ended


def end_at_once(lost: LeaseLost) -> NoReturn:
    """Ends the process: another driver has the run, so this one may write nothing more for it.

    Any thread may call this.
    """
    _ending.acquire()  # never released, so that a second thread logs nothing more
    log.error("Stopped: %s", lost)
    os._exit(EXIT_LEASE_HELD)


def _leave_to_the_loop(lost: LeaseLost) -> None:
    """Only logs it: the loop notices when it writes next."""
    log.warning("%s", lost)


def drive(
    directory: RunDirectory,
    lease: Lease,
    open_stages: OpenStages,
    on_lost: Callable[[LeaseLost], None] = _leave_to_the_loop,
    *,
    redis_url: str = "",
) -> JobStatus:
    """Returns once the run is over. A run that cannot start as requested is FAILED, and its journal
    says why. A run that was over before does not begin again, and its journal gets no new line.

    Calls `on_lost` on another thread as soon as another driver has the run. A process that only
    drives this run ends itself there (`end_at_once`): it may have been stopped in the middle of
    anything. If there is a `redis_url`, the growth of the journal is announced there.

    Raises LeaseLost if another driver has taken the run over; nothing of this driver runs then.
    Raises Retryable if a system that a run in progress needs does not answer: try again later.
    """
    ended = last_event(directory.journal_file)
    if isinstance(ended, RunEnded):
        log.warning("The run is over, and stays so: %s", ended.reason)
        return ended.status
    clock = SystemClock()
    loop = ControlLoop(clock)
    run_id, fence = directory.run_id, AttemptFence()
    with (
        kept_log(directory, lambda: fence.current, lease.check_held) as run_log,
        SignsOfLife(lease, loop, on_lost),
        open_announcer(redis_url) as announce,
        JournalWriter(directory, run_id, clock, announce, lease.check_held) as journal,
    ):
        try:
            return _host(
                directory, lease, journal, loop, clock, open_stages, fence=fence, run_log=run_log
            )
        except Rejected as refusal:
            if lease.attempts_so_far() and _may_pass(refusal):
                raise Retryable(str(refusal)) from refusal
            _record_refusal(journal, refusal)
            log.error("The run failed: %s", refusal)
            return JobStatus.FAILED


def spec_of(directory: RunDirectory) -> RunSpec:
    """Raises Rejected if the file of the run does not say what to run."""
    try:
        return msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
    except UNDECODABLE as error:
        raise Rejected(f"{directory.spec_file} does not say what to run: {error}.") from error


def _host(
    directory: RunDirectory,
    lease: Lease,
    journal: JournalWriter,
    loop: ControlLoop,
    clock: Clock,
    open_stages: OpenStages,
    *,
    fence: AttemptFence,
    run_log: RunLog,
) -> JobStatus:
    spec = spec_of(directory)
    spec = msgspec.structs.replace(spec, settings=given_settings(spec, journal))
    settings = parse_settings(spec.settings)
    loop.set_timeout(settings.heartbeat.driver_timeout_ms)
    plan = parse_faults(settings.faults)
    check_permission(plan)
    check_parallelism(spec.parallelism, spec.max_parallelism)
    beginning = RunBeginning(directory.beginning_file, lease.check_held)
    with beginning.listing():
        pipeline = _flow_of(spec, directory).build(spec.parameters)
    pipeline.graph.check_fits(spec.max_parallelism)
    slot_count = pipeline.graph.slot_count(spec.parallelism)
    spec = spec.on_slots(slot_count)
    check_required(settings.required_guarantee, end_to_end(settings.barriers.mode, pipeline.ends))
    pipeline.check_fits(settings)
    _check_reaches_readers(pipeline)
    pipeline.validate_sinks()
    # The input that a restored or resumed run has already read may be gone.
    is_fresh = spec.restore_from is None and lease.attempts_so_far() == 0 and not spec.puts_back
    if is_fresh:
        pipeline.validate_sources(settings)
    roots = configured_roots(directory.jobs_root)
    check_placement(settings.storage, roots)
    places = SnapshotPlaces.of(directory, settings.storage)
    store = CheckpointStores(
        roots,
        settings.storage.max_memory_state_bytes,
        renamed_point=spec.restore_from,
        new_names=spec.renamed_uids,
    )
    events: EventQueue = SimpleQueue()
    pool = ThreadPoolExecutor(EXECUTOR_THREADS, thread_name_prefix="storage")
    context = RunContext(
        spec=spec,
        pipeline=pipeline,
        settings=settings,
        places=places,
        storage_roots=roots,
        store=store,
        lease=lease,
        journal=journal,
        fence=fence,
        record=RunRecord(journal, fence),
        inbox=Inbox(directory),
        events=events,
        executor=WatchedExecutor(pool, events.put),
        control=control_server(settings, slot_count, events.put, loop, clock),
        clock=clock,
        draw=Random(spec.run_id).uniform,
        faults=Faults(plan),
        beginning=beginning,
        loop=loop,
        keep_lines=run_log.keep,
        waited_ms=float(os.environ.pop(WAITED, "0")),
    )
    master = JobMaster(context)
    if lease.attempts_so_far() and fits_no_point(context):
        return master.run(NoSlots())
    try:
        with open_stages(spec, context.post) as stages:
            for uid, source in pipeline.sources.items():
                if isinstance(source, DataFrameRows):
                    kept = KeptRows(source, directory, places, store)
                    _keep_data_frame(uid, source, kept, stages, lease, is_fresh=is_fresh)
            return master.run(stages)
    except StartGivenUp:
        return master.cancel_unstarted()


def _flow_of(spec: RunSpec, directory: RunDirectory) -> Flow:
    """Raises Rejected if this installation's store has no such package, or a different one."""
    code = spec.code
    if code is None:
        return find_flow(spec.pipeline)
    return find_flow(spec.pipeline, activate(code, CodeStore(directory.jobs_root).place_of(code)))


def control_server(
    settings: Settings,
    slot_count: int,
    post: Callable[[JobEvent], None],
    loop: ControlLoop,
    clock: Clock,
) -> ControlServer:
    """Raises Rejected if the driver cannot listen where the settings say."""
    networking = driver_networking(settings)
    tls = load_tls(networking.slots)
    return ControlServer(
        networking=networking,
        tls=tls,
        post=post,
        heartbeat=settings.heartbeat,
        slot_count=slot_count,
        loop=loop,
        now_ms=clock.monotonic_ms,
    )


def _check_reaches_readers(pipeline: Pipeline) -> None:
    """Raises Rejected naming a sink whose rows would be lost with a slot's process."""
    for uid, sink in pipeline.sinks.items():
        if isinstance(sink, Collect):
            raise Rejected(
                f"The sink {uid!r} collects rows in one process, and slots have processes of their"
                " own; run the pipeline with run_local, or give it a sink that others can read."
            )


def _keep_data_frame(
    uid: Uid,
    source: DataFrameRows,
    kept: KeptRows,
    stages: StageHost,
    lease: Lease,
    *,
    is_fresh: bool,
) -> None:
    """Has Spark write the rows to files, unless a continued run has rows. Raises Rejected."""
    kept.leave_note()
    if source.has_rows and not is_fresh:
        return
    if not isinstance(stages, KeepsDataFrames):
        raise Rejected(f"The source {uid!r} reads a DataFrame, and there is no Spark here.")
    count = stages.keep_rows(source)
    log.info("%s has %d rows, kept in %s", uid, count, source.directory)
    if is_fresh:
        kept.delete_unneeded(lease.check_held)


def given_settings(spec: RunSpec, journal: JournalWriter) -> dict[str, str]:
    """Returns the settings of the start, with the changes that people have made since."""
    newest = journal.newest(SettingsChanged)
    return newest.settings if newest is not None else spec.settings


def _may_pass(refusal: BaseException | None) -> bool:
    """Returns True if the cause is a system that did not answer, not the request itself."""
    while refusal is not None and not isinstance(refusal, Retryable):
        refusal = refusal.__cause__
    return refusal is not None


def _record_refusal(journal: JournalWriter, refusal: Rejected) -> None:
    attempt, sentence = Attempt(0), str(refusal)
    detail = refusal.traceback if isinstance(refusal, BrokenCode) else ""
    journal.append(FailureOccurred(cause=sentence, detail=detail, kind=kind_of(refusal)), attempt)
    journal.append(JobStatusChanged(status=JobStatus.FAILED, reason=sentence), attempt)
    journal.append(RunEnded(status=JobStatus.FAILED, reason=sentence), attempt)
