"""Runs every chosen mode through the same input and the same faults, and reports the results."""

import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointTriggered,
    Envelope,
    JobStatusChanged,
    RunStarted,
    SubtaskAcknowledged,
)
from pipelines.domain.status import JobStatus
from pipelines.lab.options import LabMode, LabOptions
from pipelines.lab.page_views import STEPS
from pipelines.lab.report import (
    CostRun,
    Facts,
    FaultRun,
    Host,
    LabReport,
    ModeReport,
    TrialFailed,
    broken_promises,
    delivered,
    latency,
    read_again,
    views_per_s,
)
from pipelines.lab.trial import forks, run_trial
from pipelines.lab.view_input import Numbers, apps_of, kill_places

Say = Callable[[str], None]

BARRIERS = "barriers_sent"
ACKER_IDS = ("acker_inits", "acker_acks", "acker_fails")
ACKER_MESSAGES = "acker_messages"


def run_lab(options: LabOptions, say: Say) -> LabReport:
    """Calls `say` with the progress. Raises TrialFailed, and Rejected for what a run refuses."""
    forks.set_forkserver_preload([run_trial.__module__])
    began_s, began_at = time.monotonic(), datetime.now(UTC)
    apps = apps_of(options.seed, np.arange(options.records, dtype=np.int64))
    modes = [_mode_report(options, mode, apps, say) for mode in options.chosen]
    return LabReport(
        began_at=began_at.isoformat(timespec="seconds"),
        took_s=round(time.monotonic() - began_s, 1),
        host=_host(options),
        options=options,
        steps=STEPS,
        kill_places=list(kill_places(options.seed, options.records, options.faults)),
        modes=modes,
    )


def _mode_report(options: LabOptions, mode: LabMode, apps: Numbers, say: Say) -> ModeReport:
    cost = None
    if options.has_cost_run:
        say(f"{mode.name}: undisturbed, at full speed")
        cost = _cost(options, mode, apps, _trial(options, mode, is_faulted=False))
        say(f"{mode.name}: {cost.views_per_s:,.0f} views/s, {cost.control_per_record:.6f} control")
    say(f"{mode.name}: {options.rate:,} views/s and {options.faults} kills")
    facts = _trial(options, mode, is_faulted=True)
    faulted = _faulted(apps, facts)
    say(f"{mode.name}: {faulted.lost:,} lost, {faulted.doubled:,} doubled")
    started = facts.of(RunStarted)[0]
    return ModeReport(
        mode=mode.name,
        promise=started.guarantee,
        reason=started.guarantee_reason,
        faulted=faulted,
        cost=cost,
        broken=broken_promises(started.guarantee, faulted, cost),
    )


def _trial(options: LabOptions, mode: LabMode, *, is_faulted: bool) -> Facts:
    with tempfile.TemporaryDirectory(prefix="ftdash-lab-") as root:
        try:
            return run_trial(Path(root), options, mode, is_faulted=is_faulted)
        except TrialFailed as failure:
            raise TrialFailed(f"{mode.name}: {failure}") from failure


def _faulted(apps: Numbers, facts: Facts) -> FaultRun:
    came, waited = delivered(facts.rows, apps), latency(facts.rows)
    return FaultRun(
        lost=came.lost,
        doubled=came.doubled,
        counted_short=came.counted_short,
        counted_over=came.counted_over,
        killed_at=[view for _, view in facts.kills],
        recovery_ms=[_running_again_ms(facts, at_ms) - at_ms for at_ms, _ in facts.kills],
        read_again=read_again(facts.reads),
        latency_p50_ms=None if waited is None else waited.p50_ms,
        latency_p99_ms=None if waited is None else waited.p99_ms,
    )


def _cost(options: LabOptions, mode: LabMode, apps: Numbers, facts: Facts) -> CostRun:
    came = delivered(facts.rows, apps)
    counted = facts.of(CheckpointCompleted)[-1].counters
    checkpoints = len(facts.of(CheckpointTriggered))
    is_acked = mode.settings["execution.checkpointing.mode"] == "ACKED"
    barriers, ids = _sum(counted, BARRIERS), _sum(counted, *ACKER_IDS)
    return CostRun(
        lost=came.lost,
        doubled=came.doubled,
        views_per_s=round(views_per_s(facts.rows, facts.began_ms), 1),
        checkpoints=checkpoints,
        barriers=barriers,
        barriers_expected=checkpoints * STEPS * options.parallelism**2,
        acknowledgements=len(facts.of(SubtaskAcknowledged)),
        acker_ids=ids,
        acker_ids_expected=(1 + STEPS) * options.records if is_acked else 0,
        acker_messages=_sum(counted, ACKER_MESSAGES),
        control_per_record=(barriers + ids) / options.records,
    )


def _sum(counters: dict[str, int], *names: str) -> int:
    return sum(count for name, count in counters.items() if name.rpartition(".")[2] in names)


def _running_again_ms(facts: Facts, since_ms: int) -> int:
    for envelope in facts.envelopes:
        if envelope.at_ms >= since_ms and _is_running(envelope):
            return envelope.at_ms
    raise TrialFailed("A run that was hit did not run again.")


def _is_running(envelope: Envelope) -> bool:
    event = envelope.event
    return isinstance(event, JobStatusChanged) and event.status is JobStatus.RUNNING


def _host(options: LabOptions) -> Host:
    return Host(
        slots=f"{options.parallelism} processes of one machine, without Spark",
        machine=f"{platform.system()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
    )
