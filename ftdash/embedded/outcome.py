"""The answer of `demo --check`: one flat object, written for scripts."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

EXACT = "exact"


class Comparison(msgspec.Struct, frozen=True):
    """One sink compared with the batch answer, in rows."""

    rows: int
    missing: int
    duplicated: int
    different: int
    sample_differences: list[str] = []

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.duplicated or self.different)


class OracleAnswer(msgspec.Struct, frozen=True):
    rows_expected: int
    files: Comparison
    sql: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """`verdict` is "exact", or one sentence: what differs, or which step of the check failed."""

    verdict: str = "not compared"
    rows_expected: int = 0
    missing: int = 0
    duplicated: int = 0
    different: int = 0
    checkpoints_completed: int = 0
    slots_killed: int = 0
    drivers_killed: int = 0
    restores: int = 0
    recovery_ms: list[float] = field(default_factory=list)
    files_output: str = ""
    sql_output: str = ""
    sinks: dict[str, int] = field(default_factory=dict)  # the rows in each
    seconds: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.verdict == EXACT

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        return "\n".join(f"{name:<22} {value}" for name, value in self.as_json().items())

    def compared(self, rows_expected: int, sinks: dict[str, Comparison]) -> "CheckOutcome":
        return replace(
            self,
            verdict=verdict_on(rows_expected, sinks),
            rows_expected=rows_expected,
            missing=sum(sink.missing for sink in sinks.values()),
            duplicated=sum(sink.duplicated for sink in sinks.values()),
            different=sum(sink.different for sink in sinks.values()),
            sinks={name: sink.rows for name, sink in sinks.items()},
        )


def verdict_on(rows_expected: int, sinks: dict[str, Comparison]) -> str:
    """An empty answer is no success, because comparing nothing with nothing proves nothing."""
    if rows_expected == 0 or not sinks:
        return "The right answer is without a row; there was nothing to compare."
    differing = [
        f"{name}: {sink.missing} missing, {sink.duplicated} duplicated, {sink.different} different"
        for name, sink in sinks.items()
        if not sink.is_exact
    ]
    return f"Of {rows_expected} rows, {'; '.join(differing)}." if differing else EXACT
