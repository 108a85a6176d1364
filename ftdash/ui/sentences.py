"""The one sentence above each chart: what the chart says, for people who cannot see it. Pure."""

from collections.abc import Collection

from ftdash.checkpoints.answers import AlignmentTimeline, ChannelTimeline, Slowest
from ftdash.formats import count, duration, percent, plural, rate, size
from ftdash.jobs.answers import RecoveryAxis, RecoveryView, ShownState
from ftdash.metrics.queries.loads import SamplePoint
from ftdash.runs.fleet_answers import Fleet
from ftdash.ui.checkpoint.part_rows import fullest_channels

MEAN_OF = 10
"""Samples come once a second; one of them says little about a source that reads in batches."""

FLAT_RATIO = 0.05
"""Memory counts as flat if its later half differs from the earlier one by less than this."""


def alignment(timeline: AlignmentTimeline | None) -> str:
    """Names the longest stretch before the last acknowledgement, with its reason and cost."""
    if timeline is None:
        return "No checkpoint has completed yet: the timeline appears with the first one."
    name = f"Checkpoint {timeline.checkpoint.checkpoint_id}"
    total_ms = timeline.checkpoint.end_to_end_ms
    took = f"{name} took {duration(total_ms)}" if total_ms is not None else f"{name} is under way"
    if timeline.checkpoint.reason_name:
        took = f"{name} failed: {timeline.checkpoint.reason_text.rstrip('.')}"
    if timeline.slowest is None:
        return f"{took}; no subtask's times are kept for it."
    which = "last" if total_ms is not None else "newest"
    return f"{took}; its {which} acknowledgement waited longest for {slowest(timeline.slowest)}."


def slowest(slow: Slowest) -> str:
    subtask = f"{slow.vertex}[{slow.subtask}]"
    share = f"{duration(slow.phase_ms)} ({percent(slow.phase_ratio)})"
    held, awaited = slow.held_back, slow.waited_for
    match slow.phase:
        case "alignment" if held is not None and awaited is not None:
            share = f"{duration(held.blocked_ms)} ({percent(slow.phase_ratio)})"
            buffered = plural(held.buffered_records, "record")
            waited = (
                f"{subtask}: it held back {upstream(held)} for {share} with {buffered} buffered, "
            )
            if slow.stood_in_own_queue:
                return (
                    f"{waited}because the barrier from {upstream(awaited)} stood in its own queue"
                    f" for {duration(slow.queued_ms)}, behind records that {subtask} had not"
                    " processed yet"
                )
            return f"{waited}waiting for {upstream(awaited)}"
        case "travel" if awaited is not None:
            return (
                f"{subtask}: the barrier from {upstream(awaited)} stood in its queue for {share}, "
                f"behind records that {subtask} had not processed yet"
            )
        case "start delay":
            return f"{subtask}: it began only {share} after the trigger"
        case "sync":
            return f"{subtask}: it stood still for {share} to cut its state"
        case "async":
            return f"{subtask}: the upload of its state took {share}"
        case _:
            return f"{subtask}: its {slow.phase} took {share}"


def held_back(timeline: AlignmentTimeline | None) -> str:
    """Says how much waited behind the checkpoint's barriers, where most of it did, since when."""
    if timeline is None or not timeline.subtasks:
        return "What waited behind the barriers is not kept."
    waiting = [
        channel.buffered_records
        for subtask in timeline.subtasks
        for channel in subtask.held_back
        if channel.blocked_ms > 0 and channel.buffered_records
    ]
    if not waiting:
        return "No record waited behind a barrier."
    subtask, fullest = fullest_channels(timeline, 1)[0]
    found = (
        f"{plural(sum(waiting), 'record')} waited behind the barriers of"
        f" {plural(len(waiting), 'channel')}"
        f" in the end; most of them, {count(fullest.buffered_records)}, from {upstream(fullest)} at"
        f" {subtask.vertex}[{subtask.subtask}]"
    )
    if not fullest.steps:
        return f"{found}. How they came was not measured."
    first = fullest.steps[0]
    read = f"when its barrier was read, {duration(first.at_ms)} after the trigger"
    if first.records == fullest.buffered_records:
        return f"{found}, queued already {read}."
    return (
        f"{found}: {count(first.records)} {read}, and the others in the"
        f" {duration(fullest.blocked_ms)} until the last barrier."
    )


def upstream(channel: ChannelTimeline) -> str:
    return f"{channel.upstream}[{channel.upstream_subtask}]"


def recovery_axis(axis: RecoveryAxis | None) -> str:
    if axis is None or not (axis.points or axis.failures):
        return "Nothing has completed or failed in this run yet."
    retained = sum(point.is_available for point in axis.points)
    points = f"{plural(retained, 'recovery point')} {'is' if retained == 1 else 'are'} kept"
    if not axis.failures:
        return f"No failure in this run; {points}."
    return f"{plural(len(axis.failures), 'failure')} in this run; {points}. {last_recovery(axis)}"


def last_recovery(axis: RecoveryAxis) -> str:
    if not axis.recoveries:
        return "No recovery has begun."
    last = axis.recoveries[-1]
    if last.to_running_ms is None:
        if axis.statuses and ShownState(axis.statuses[-1].status).is_terminal:
            return f"The run ended before attempt {last.attempt} was running."
        return f"The recovery to attempt {last.attempt} is under way."
    return (
        f"The last recovery had all subtasks running after {duration(last.to_running_ms)}, "
        f"from {restored_point(last)}{replayed(last)}."
    )


def restored_point(recovery: RecoveryView) -> str:
    if recovery.restored_checkpoint_id is None:
        return "the beginning"
    return f"checkpoint {recovery.restored_checkpoint_id}"


def replayed(recovery: RecoveryView) -> str:
    if recovery.records_to_replay is None:
        return ""
    return f", with {plural(recovery.records_to_replay, 'record')} to replay"


def fleet(shown: Fleet, having_incidents: Collection[str] = ()) -> str:
    pipelines = shown.pipelines
    if not pipelines:
        return "No pipeline was started here yet."
    running = sum(pipeline.state is ShownState.RUNNING for pipeline in pipelines)
    waiting = sum(bool(each.attention) or each.name in having_incidents for each in pipelines)
    attention = (
        "nothing needs attention"
        if not waiting
        else f"{waiting} {'needs' if waiting == 1 else 'need'} attention"
    )
    return f"{plural(len(pipelines), 'pipeline')}, {running} running; {attention}."


def throughput(samples: list[SamplePoint]) -> str:
    if not samples:
        return "No sample has arrived yet."
    rates = [sample.records_per_s for sample in samples]
    newest = rates[-MEAN_OF:]
    return (
        f"The sources read {rate(sum(newest) / len(newest))} over the last"
        f" {plural(len(newest), 'second')}, {rate(sum(rates) / len(rates))} on average over"
        f" {plural(len(rates), 'sample')}."
    )


def memory(samples: list[SamplePoint]) -> str:
    """Compares the later half with the earlier, so that a slow leak shows as a number."""
    totals = [total for sample in samples if (total := sum(sample.resident_bytes.values()))]
    if not totals:
        return "No slot has reported its memory yet."
    now = f"The slots hold {size(totals[-1])} in the newest sample"
    if len(totals) < 20:
        return f"{now}; the trend shows after {count(20)} samples."
    half = len(totals) // 2
    earlier, later = sum(totals[:half]) / half, sum(totals[half:]) / (len(totals) - half)
    change = later / earlier - 1
    by = f"{round(100 * change, 1) + 0.0:+.1f} %"  # adding zero turns -0.0 into 0.0
    if abs(change) < FLAT_RATIO:
        return f"{now}; flat over the shown time ({by})."
    return f"{now}; {'growing' if change > 0 else 'shrinking'} over the shown time ({by})."
