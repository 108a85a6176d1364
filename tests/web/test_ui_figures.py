"""Figures are valid for Plotly, stay within their bounds, and never rely on colour alone."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from plotly import graph_objects

from ftdash.checkpoints.answers import (
    AlignmentTimeline,
    ChannelTimeline,
    CheckpointRow,
    HeldBackStep,
    SubtaskTimeline,
    slowest_of,
)
from ftdash.checkpoints.models import CheckpointStatus
from ftdash.checkpoints.queries.completed_history import CompletedHistory, FailedPoint, Trend
from ftdash.jobs.answers import (
    AxisPoint,
    FailureView,
    Notice,
    PhaseView,
    RecoveryAxis,
    RecoveryView,
    StatusView,
    VerificationView,
)
from ftdash.metrics.queries.loads import TREND_POINTS_MAX, SamplePoint, VertexMoment
from ftdash.ui import sentences
from ftdash.ui.checkpoint.part_rows import CHANNELS_MAX, held_back
from ftdash.ui.checkpoints import trends as checkpoint_trends
from ftdash.ui.figures.alignment import ROWS_MAX, alignment
from ftdash.ui.figures.recovery import recovery_axis, recovery_phases
from ftdash.ui.figures.style import POINTS_MAX, memory, moment, throughput
from ftdash.ui.lab.page import lab_control, lab_latency
from ftdash.ui.metrics.operators import busy, records_in, watermarks
from ftdash.ui.planner.page import lost_time
from pipelines.domain.planning import Costs
from pipelines.domain.status import RecoveryPhase
from tests.unit.lab.reports import mode, report

LAB = report(mode("exactly-once"), mode("acked", acker_ids=30_000))
NOW = datetime(2026, 11, 21, 14, 2, 11, tzinfo=UTC)
CHECKPOINTS = Trend(
    CompletedHistory.of(
        [
            (number, NOW + timedelta(seconds=number), 80.0 + number, 2.0, 10, 5, 3, 0)
            for number in range(2 * POINTS_MAX)
        ]
    ),
    [FailedPoint(number, NOW, 900.0) for number in range(2 * POINTS_MAX)],
)


@pytest.mark.slow
def test_plotly_accepts_each_figure() -> None:
    for figure in every_figure():
        drawn = graph_objects.Figure(with_colors(figure))

        assert len(drawn.data) > 0


def test_figures_use_only_svg_traces_with_a_bounded_number_of_points() -> None:
    for figure in every_figure():
        for trace in traces(figure):
            assert trace["type"] in ("bar", "scatter")
            assert len(trace["x"]) <= POINTS_MAX


def test_no_two_series_of_a_figure_differ_by_colour_alone() -> None:
    for figure in every_figure():
        looks = [look_without_color(trace) for trace in traces(figure)]

        assert len(set(looks)) == len(looks)


@pytest.mark.slow
def test_every_colour_is_defined_in_the_style_sheet_for_light_and_dark() -> None:
    used = set(re.findall(r'"@([a-z0-9-]+)"', json.dumps(every_figure())))
    with open("static/css/base.css") as file:
        light, dark = file.read().split("prefers-color-scheme: dark", 1)

    assert used
    for name in used:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark


def test_the_timeline_draws_barrier_arrivals_and_how_long_channels_were_held() -> None:
    figure = alignment(timeline([source("flights", 0), joined(0)]))

    held = named(figure, "held back")
    assert held["base"] == [2.0, 62.0]
    assert held["x"] == [60.0, 0.0]
    assert "2,400 records, 240 kB buffered" in held["customdata"][0]
    assert named(figure, "acknowledged")["x"] == [6.0, 80.0]
    assert named(figure, "alignment")["base"] == [2.0, 2.0]


def test_the_held_back_records_grow_in_steps_until_the_last_barrier() -> None:
    figure = held_back(timeline([source("flights", 0), joined(0)]))

    (line,) = traces(figure)
    assert line["name"] == "flights[0] to join[0]"
    assert (line["x"], line["y"]) == ([2.0, 32.0, 62.0], [600, 2400, 2400])
    assert line["line"]["shape"] == "hv"


def test_the_channels_that_held_back_most_are_drawn() -> None:
    channels = [channel("flights", each, 2.0, 1.0 + each) for each in range(30)]

    figure = held_back(timeline([subtask("join", 0, channels=channels)]))

    names = [trace["name"] for trace in traces(figure)]
    assert names == [f"flights[{each}] to join[0]" for each in range(29, 29 - CHANNELS_MAX, -1)]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (2400, "flights[0] at join[0], queued already when its barrier was read, 2.0 ms after the"),
        (
            600,
            "at join[0]: 600 when its barrier was read, 2.0 ms after the trigger, and the others",
        ),
    ],
)
def test_the_sentence_says_when_most_of_the_held_back_records_arrived(
    first: int, said: str
) -> None:
    full, slow = joined(0).channels
    steps = (HeldBackStep(2.0, first, 1), HeldBackStep(32.0, 2400, 2))
    shown = timeline([subtask("join", 0, channels=[replace(full, steps=steps), slow])])

    assert said in sentences.held_back(shown)
    assert "2,400 records waited behind the barriers of 1 channel in" in sentences.held_back(shown)


def test_the_sentence_says_that_no_record_waited() -> None:
    assert sentences.held_back(timeline([source("flights", 0)])) == (
        "No record waited behind a barrier."
    )
    assert sentences.held_back(None) == "What waited behind the barriers is not kept."


def test_the_timeline_draws_the_slowest_subtasks_if_not_all_fit() -> None:
    subtasks = [source("flights", index, acknowledged_ms=float(index)) for index in range(200)]

    rows = named(alignment(timeline(subtasks)), "acknowledged")["y"]

    assert rows == [f"flights[{index}]" for index in range(200 - ROWS_MAX, 200)]


def test_without_data_there_is_no_figure() -> None:
    nothing = RecoveryAxis(run_id="r", from_at=NOW, to_at=NOW)

    assert alignment(None) is None
    assert held_back(None) is held_back(timeline([source("flights", 0)])) is None
    assert alignment(timeline([])) is None
    assert recovery_axis(None) is recovery_axis(nothing) is None
    assert recovery_phases(nothing) is None
    assert throughput([]) is memory([]) is None


def test_a_held_back_channel_is_named_with_what_it_waited_for() -> None:
    subtasks = [source("flights", 0), source("weather", 1), joined(0)]

    assert sentences.alignment(timeline(subtasks)) == (
        "Checkpoint 41 took 84 ms; its last acknowledgement waited longest for join[0]: it held"
        " back flights[0] for 60 ms (75 %) with 2,400 records buffered, because the barrier from"
        " weather[1] stood in its own queue for 59 ms, behind records that join[0] had not"
        " processed yet."
    )


def test_a_subtask_downstream_is_not_blamed_for_the_wait_upstream() -> None:
    downstream = subtask(
        "delays", 0, start=70.0, acknowledged_ms=95.0, channels=[channel("join", 0, 70.0, 0.0)]
    )

    sentence = sentences.alignment(timeline([source("weather", 1), joined(0), downstream]))

    assert "waited longest for join[0]: it held back flights[0]" in sentence


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"sync": 50.0}, "flights[0]: it stood still for 50 ms (62 %) to cut its state"),
        ({"upload": 50.0}, "flights[0]: the upload of its state took 50 ms (62 %)"),
        ({"start": 50.0}, "flights[0]: it began only 50 ms (62 %) after the trigger"),
    ],
)
def test_the_sentence_names_the_phase_that_took_longest(times: dict[str, float], said: str) -> None:
    only = subtask("flights", 0, acknowledged_ms=80.0, **times)

    assert said in sentences.alignment(timeline([only]))


def test_a_barrier_stuck_behind_records_is_named() -> None:
    late = subtask(
        "join", 0, start=60.0, acknowledged_ms=80.0, channels=[channel("flights", 0, 60.0, 0.0)]
    )

    sentence = sentences.alignment(timeline([source("flights", 0), late]))

    assert "join[0]: the barrier from flights[0] stood in its queue for 57 ms (71 %)" in sentence


def test_a_barrier_in_the_slow_subtasks_own_queue_is_not_blamed_on_the_sender() -> None:
    """`orders[0]` sent its barrier at once and was idle; the reader reached it 20 s later."""
    channels = [channel("orders", 0, 22_000.0, 0.0), channel("orders", 1, 2_000.0, 20_000.0)]
    slow = subtask(
        "hourly", 1, start=2_000.0, alignment=20_000.0, acknowledged_ms=22_010.0, channels=channels
    )

    sentence = sentences.alignment(timeline([source("orders", 0), source("orders", 1), slow]))

    assert (
        "because the barrier from orders[0] stood in its own queue for 20.0 s, behind records that"
        " hourly[1] had not processed yet" in sentence
    )
    assert "waiting for orders[0]" not in sentence


def test_the_axis_says_how_the_last_recovery_went() -> None:
    assert sentences.recovery_axis(axis()) == (
        "1 failure in this run; 2 recovery points are kept. The last recovery had all"
        " subtasks running after 300 ms, from checkpoint 7, with 12,300 records to replay."
    )


def test_the_axis_draws_each_rewind_from_the_failure_back_to_its_point() -> None:
    shown = axis()
    to_the_beginning = replace(shown.recoveries[0], attempt=3, restored_path=None)
    elsewhere = replace(shown.recoveries[0], attempt=4, restored_checkpoint_id=99)
    shown.recoveries.extend([to_the_beginning, elsewhere])

    figure = recovery_axis(shown)

    span, marks = named(figure, "rewind"), named(figure, "went back to")
    failed, point, start = (moment(NOW + timedelta(seconds=each)) for each in (3, 2, 0))
    assert span["x"] == [failed, point, None, failed, start, None]
    assert marks["x"] == [point, start]
    assert marks["customdata"][0] == "attempt 2 went back to checkpoint 7, 12,300 records to replay"


def test_a_recovery_without_a_chosen_point_has_no_rewind_and_ends_with_its_run() -> None:
    shown = axis()
    unfinished = {"restored_path": None, "running_at": None, "to_running_ms": None}
    shown.recoveries.append(replace(shown.recoveries[0], attempt=17, **unfinished))
    rewinds = named(recovery_axis(shown), "went back to")["customdata"]

    going_on = sentences.last_recovery(shown)
    shown.statuses.append(StatusView("r", NOW, "FAILED", "given up"))

    assert [text.split(" went")[0] for text in rewinds] == ["attempt 2"]
    assert going_on == "The recovery to attempt 17 is under way."
    assert sentences.last_recovery(shown) == "The run ended before attempt 17 was running."


def test_the_axis_tells_zombies_from_other_notices_and_names_the_phases() -> None:
    figure = recovery_axis(axis())

    assert named(figure, "stale attempt refused")["customdata"] == ["refused"]
    assert named(figure, "notice")["customdata"] == ["damaged"]
    assert named(figure, "points read again")["customdata"] == [
        "points read again: 2 whole, 1 damaged"
    ]
    (running,) = named(figure, "all subtasks running again")["customdata"]
    assert running.startswith("attempt 2 running: 300 ms (detect 60 ms, decide 60 ms, stop 60 ms,")


@pytest.mark.parametrize(
    ("growth", "word"), [(0.0, "flat"), (0.01, "growing"), (-0.004, "shrinking")]
)
def test_memory_is_called_flat_only_when_it_is(growth: float, word: str) -> None:
    points = [sample(index, int(2e8 * (1 + growth * index))) for index in range(100)]

    assert word in sentences.memory(points)


def test_a_memory_change_that_rounds_to_zero_has_no_minus_sign() -> None:
    points = [sample(index, 200_000_000 - 100 * index) for index in range(100)]

    assert sentences.memory(points).endswith("; flat over the shown time (+0.0 %).")


def test_lines_have_a_gap_where_no_sample_was_reported() -> None:
    samples = [sample(second, 200_000_000) for second in (0, 1, 2, 30, 31)]

    (rates,) = traces(throughput(samples))
    slots = traces(memory(samples))

    assert rates["y"] == [1000.0, 1000.0, 1000.0, None, 1000.0, 1000.0]
    assert all(slot["y"] == [200.0, 200.0, 200.0, None, 200.0, 200.0] for slot in slots)


def test_throughput_is_averaged_over_ten_seconds() -> None:
    """A batch of 600 records every ten seconds is 60/s at any moment."""
    samples = [
        SamplePoint(NOW + timedelta(seconds=second), 600.0 if second % 10 == 0 else 0.0, 0, {})
        for second in range(40)
    ]

    (rates,) = traces(throughput(samples))

    assert set(rates["y"][10:]) == {60.0}
    assert rates["y"][0] == 600.0, "as long as there is no more"


@pytest.mark.parametrize("hostile", ['<a href="https://evil.example">x</a>', "&lt;b>x", "<i>%{x}"])
def test_plotly_gets_names_and_sentences_escaped_in_every_figure(hostile: str) -> None:
    """Covers the names from operators, failures and reports; all other texts are ours."""
    held = channel(hostile, 0, 2.0, 60.0)
    shown = timeline([source(hostile, 0), subtask(hostile, 1, alignment=60.0, channels=[held])])
    told = axis()
    told = replace(
        told,
        failures=[replace(told.failures[0], cause=hostile)],
        notices=[replace(each, text=hostile) for each in told.notices],
    )
    trends = {hostile: trend(TREND_POINTS_MAX)}
    lab = report(mode(hostile, acker_ids=30_000))

    for figure in (
        alignment(shown),
        held_back(shown),
        recovery_axis(told),
        busy(trends),
        records_in(trends),
        watermarks(trends),
        lab_control(lab),
        lab_latency(lab),
    ):
        texts = list(texts_in(figure))
        shows = [
            text for text in texts if hostile.replace("&", "&amp;").replace("<", "&lt;") in text
        ]
        unsafe = [text for text in texts if hostile in text]
        assert shows, figure
        assert unsafe == []


def texts_in(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from texts_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from texts_in(value)


def every_figure() -> list[Any]:
    shown = timeline([source("flights", 0), source("weather", 1), joined(0)])
    samples = [sample(10 * index, 200_000_000) for index in range(3 * POINTS_MAX)]
    trends = {name: trend(TREND_POINTS_MAX) for name in ("flights", "weather", "join")}
    return [
        alignment(shown),
        held_back(shown),
        recovery_axis(axis()),
        recovery_phases(axis()),
        throughput(samples),
        memory(samples),
        busy(trends),
        records_in(trends),
        watermarks(trends),
        lab_control(LAB),
        lab_latency(LAB),
        checkpoint_trends.durations(CHECKPOINTS),
        checkpoint_trends.alignments(CHECKPOINTS),
        checkpoint_trends.sizes(CHECKPOINTS),
        checkpoint_trends.buffered(CHECKPOINTS),
        lost_time(Costs(62.0, 3.6e6, 300.0), 22_000.0, 10_000.0),
    ]


def traces(figure: Any) -> list[Any]:
    return list(figure["data"])


def named(figure: Any, name: str) -> Any:
    return next(trace for trace in traces(figure) if trace["name"] == name)


def look_without_color(trace: Any) -> str:
    marker, line = trace.get("marker", {}), trace.get("line", {})
    pattern = marker.get("pattern", {}).get("shape", "")
    return (
        f"{trace['type']} {pattern} {marker.get('symbol')} {line.get('dash')} {trace.get('width')}"
    )


def with_colors(figure: Any) -> Any:
    return json.loads(re.sub(r'"@[a-z0-9-]+"', '"#123456"', json.dumps(figure)))


def timeline(subtasks: list[SubtaskTimeline]) -> AlignmentTimeline:
    row = CheckpointRow(
        run_id="r",
        checkpoint_id=41,
        attempt=1,
        kind="CHECKPOINT",
        status=CheckpointStatus.COMPLETED,
        trigger_at=NOW,
        completed_at=NOW,
        committed_at=NOW,
        end_to_end_ms=84.0,
        state_bytes=1,
        uploaded_bytes=1,
        buffered_records=1,
        buffered_bytes=1,
        alignment_ms=None,
        failed_at=None,
        persisted_bytes=0,
        source_records=1,
        acknowledged_count=1,
        subtask_count=1,
        reason_name="",
        reason_text="",
        message="",
        path=None,
        watermark_at=None,
        counters={},
        request_id=None,
    )
    return AlignmentTimeline(row, subtasks, slowest_of(subtasks))


def subtask(
    vertex: str,
    index: int,
    *,
    start: float = 2.0,
    alignment: float = 0.0,
    sync: float = 1.0,
    upload: float = 3.0,
    acknowledged_ms: float = 6.0,
    channels: list[ChannelTimeline] | None = None,
) -> SubtaskTimeline:
    return SubtaskTimeline(
        vertex=vertex,
        subtask=index,
        start_delay_ms=start,
        alignment_ms=alignment,
        sync_ms=sync,
        async_ms=upload,
        acknowledged_ms=acknowledged_ms,
        state_bytes=100,
        uploaded_bytes=10,
        channels=channels or [],
    )


def source(vertex: str, index: int, acknowledged_ms: float = 6.0) -> SubtaskTimeline:
    return subtask(vertex, index, acknowledged_ms=acknowledged_ms)


def joined(index: int) -> SubtaskTimeline:
    channels = [channel("flights", 0, 2.0, 60.0), channel("weather", 1, 62.0, 0.0)]
    return subtask("join", index, alignment=60.0, acknowledged_ms=80.0, channels=channels)


def channel(upstream: str, index: int, arrived: float, blocked: float) -> ChannelTimeline:
    name = f"{upstream}[{index}]>join.0[0]"
    records = int(blocked * 40)
    steps = (
        HeldBackStep(arrived, records // 4, records * 25),
        HeldBackStep(arrived + blocked / 2, records, records * 100),
    )
    return ChannelTimeline(
        channel=name,
        upstream=upstream,
        upstream_subtask=index,
        port=0,
        arrived_ms=arrived,
        blocked_ms=blocked,
        buffered_records=records,
        buffered_bytes=records * 100,
        steps=steps,
    )


def axis() -> RecoveryAxis:
    at = [NOW + timedelta(seconds=second) for second in range(6)]
    phases = [PhaseView(phase.value, 60.0, at[3]) for phase in RecoveryPhase]
    return RecoveryAxis(
        run_id="r",
        from_at=at[0],
        to_at=at[5],
        points=[
            AxisPoint("r", 6, "CHECKPOINT", at[1], False, None),
            AxisPoint("r", 7, "CHECKPOINT", at[2], True, "p"),
            AxisPoint("r", 8, "SAVEPOINT", at[4], True, "p"),
        ],
        failures=[
            FailureView(
                run_id="r",
                attempt=1,
                at=at[3],
                cause="Slot 1 <pid 9>",
                vertex=None,
                subtask=None,
                slot=1,
                detail="",
            )
        ],
        recoveries=[
            RecoveryView(
                run_id="r",
                attempt=2,
                started_at=at[3],
                running_at=at[4],
                ended_at=at[5],
                to_running_ms=300.0,
                phases=phases,
                restored_checkpoint_id=7,
                restored_path="p",
                records_to_replay=12_300,
            )
        ],
        notices=[
            Notice("zombie_refused", "r", 1, at[4], "refused"),
            Notice("restore_refused", "r", 1, at[4], "damaged"),
        ],
        verifications=[VerificationView("r", at[5], 2, 1, 0, 40.0)],
    )


def sample(second: int, resident_bytes: int) -> SamplePoint:
    memory_of_slots = {0: resident_bytes, 1: resident_bytes}
    return SamplePoint(NOW + timedelta(seconds=second), 1000.0, 0, memory_of_slots)


def trend(count: int) -> list[VertexMoment]:
    return [
        VertexMoment(
            at=NOW + timedelta(seconds=6 * index),
            busy_ratio=0.5,
            backpressured_ratio=0.1,
            idle_ratio=0.4,
            records_in_per_s=9.0,
            records_out_per_s=9.0,
            watermark_ms=1_000 * index,
        )
        for index in range(count)
    ]
