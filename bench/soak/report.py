"""The report at the end of a soak: one object for programs, and a table for people. Pure."""

from collections.abc import Sequence
from dataclasses import asdict

from bench.soak.measuring import COMPLETED
from bench.soak.running import Soaked
from bench.soak.schedule import Fault
from bench.soak.slopes import JUDGED_FROM_S, Slope, percentile, slopes

Fields = dict[str, object]
SAID_MAX = 20


def fields_of(soaked: Soaked, seed: int) -> Fields:
    """Returns the fields of the report; `flat` is None if the run was too short to judge slopes."""
    judges = soaked.seconds >= JUDGED_FROM_S
    found = slopes(soaked.samples, checkpoints=COMPLETED, judges=judges)
    checkers = {line.name: line.checker for line in soaked.lines}
    return {
        "lost": sum(len(each.lost) for each in checkers.values()),
        "doubled": sum(len(each.doubled) for each in checkers.values()),
        "different": sum(len(each.different) for each in checkers.values()),
        "flat": all(each.is_flat for each in found.values()) if judges and found else None,
        "faults": dict(soaked.done),
        "not_done": soaked.refused[:SAID_MAX],
        "not_come": sorted(set(Fault) - soaked.done.keys() - soaked.left_out.keys()),
        "ended_runs": soaked.ended,
        "unfinished": soaked.unfinished,
        "left_processes": soaked.left_processes,
        "left_directories": soaked.left_directories,
        "recoveries": len(soaked.recoveries_ms),
        "recovery_ms": {
            "p50": percentile(soaked.recoveries_ms, 0.5),
            "p90": percentile(soaked.recoveries_ms, 0.9),
            "max": percentile(soaked.recoveries_ms, 1.0),
        },
        "still_s": {line.name: round(line.still_s, 1) for line in soaked.lines},
        "rows": {name: len(each.seen) for name, each in checkers.items()},
        "looks": sum(line.looks for line in soaked.lines),
        "samples_of_rows": {
            name: each.samples() for name, each in checkers.items() if not each.is_right
        },
        "slopes": {name: _rounded(slope) for name, slope in found.items()},
        "seed": seed,
        "seconds": soaked.seconds,
        "is_interrupted": soaked.is_interrupted,
        "left_out": soaked.left_out,
    }


def _rounded(slope: Slope) -> Fields:
    given = asdict(slope)
    return {name: round(v, 2) if isinstance(v, float) else v for name, v in given.items()}


def is_good(fields: Fields) -> bool:
    bad = (
        *("lost", "doubled", "different", "ended_runs", "unfinished"),
        *("left_processes", "left_directories"),
    )
    return fields["flat"] is not False and not any(fields[name] for name in bad)


def table(fields: Fields) -> str:
    lines = [f"{name:<18} {_text(value)}" for name, value in fields.items() if name != "slopes"]
    return "\n".join([*lines, "", *_slopes(fields)])


def _slopes(fields: Fields) -> Sequence[str]:
    found = fields["slopes"]
    if not isinstance(found, dict) or not found:
        return ["Nothing was measured often enough for a slope."]
    judged = "" if fields["flat"] is not None else "; too short a run to judge them"
    return [
        f"Slopes by the hour, with their standard error{judged}:",
        *(f"  {name:<26} {_slope(slope)}" for name, slope in found.items()),
    ]


def _slope(slope: Fields) -> str:
    bound = "" if slope["bound"] is None else f"   at most {slope['bound']:,}"
    verdict = "" if slope["is_flat"] else "   NOT FLAT"
    return f"{slope['per_hour']:>16,} ± {slope['error']:,}{bound}{verdict}"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "-"
    if isinstance(value, list):
        return "".join(f"\n  {each}" for each in value) or "-"
    return "-" if value is None else str(value)
