"""A lab's report as text for a terminal: a table with one line per mode, and what it means."""

from collections.abc import Iterable

from pipelines.lab.report import LabReport, ModeReport, comparison

_HEADINGS = (
    "mode", "lost", "doubled", "short", "over", "read again", "recovery ms", "p50 ms", "p99 ms",
    "views/s", "barriers", "acks", "control/record",
)  # fmt: skip


def sentences(report: LabReport) -> list[str]:
    table = [_HEADINGS, *(_line(mode) for mode in report.modes)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADINGS))]
    lines = [_padded(line, widths) for line in table]
    promises = [f"{mode.mode} promises {mode.promise}: {_verdict(mode)}" for mode in report.modes]
    return [*lines, "", *promises, "", *filter(None, [comparison(report)])]


def _line(mode: ModeReport) -> tuple[str, ...]:
    run, cost = mode.faulted, mode.cost
    return (
        mode.mode,
        *(f"{n:,}" for n in (run.lost, run.doubled, run.counted_short, run.counted_over)),
        f"{run.read_again:,}",
        "/".join(map(str, run.recovery_ms)) or "-",
        *(_milliseconds(each) for each in (run.latency_p50_ms, run.latency_p99_ms)),
        *(
            ("-",) * 4
            if cost is None
            else (
                f"{cost.views_per_s:,.0f}",
                f"{cost.barriers:,}",
                f"{cost.acker_ids:,}",
                f"{cost.control_per_record:.6f}",
            )
        ),
    )


def _verdict(mode: ModeReport) -> str:
    return " ".join(mode.broken) or "kept."


def _milliseconds(duration: float | None) -> str:
    return "-" if duration is None else f"{duration:,.0f}"


def _padded(line: Iterable[str], widths: list[int]) -> str:
    first, *rest = zip(line, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)])
