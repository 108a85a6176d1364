"""The lines of the tables about a run's checkpoints: summary and configuration. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftdash.checkpoints.distribution import QUANTILES, Distribution
from ftdash.checkpoints.queries.statistics import CheckpointDistributions
from ftdash.formats import UNKNOWN, duration, size
from pipelines.domain.settings.table import DEFINITIONS

SETTINGS = ("execution.checkpointing.", "state.", "restart-strategy.")
"""The prefixes of settings that control how checkpoints are taken and restored."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    label: str
    cells: list[str]  # in the order of `SUMMARY_COLUMNS`


@dataclass(frozen=True, slots=True)
class SettingRow:
    key: str
    value: str
    is_default: bool
    help: str


Column = tuple[str, Callable[[CheckpointDistributions], Distribution], Callable[[float], str]]
_COLUMNS: list[Column] = [
    ("End to end duration", lambda each: each.end_to_end_ms, duration),
    ("Longest alignment", lambda each: each.alignment_ms, duration),
    ("Uploaded", lambda each: each.uploaded_bytes, size),
    ("Full size", lambda each: each.state_bytes, size),
    ("Held back while aligning", lambda each: each.buffered_bytes, size),
    ("In flight, kept", lambda each: each.persisted_bytes, size),
]
SUMMARY_COLUMNS = [label for label, _, _ in _COLUMNS]
_LABELS = [f"{100 * share:g} %" for share in QUANTILES]


def summary_rows(summary: CheckpointDistributions) -> list[SummaryRow]:
    """Least, mean and greatest, and the quantiles that Flink shows."""
    found = [(column(summary), written) for _, column, written in _COLUMNS]
    return [
        SummaryRow("Minimum", [_written(each, each.minimum, write) for each, write in found]),
        SummaryRow("Average", [_written(each, each.average, write) for each, write in found]),
        *(
            SummaryRow(label, [_quantile(each, index, write) for each, write in found])
            for index, label in enumerate(_LABELS)
        ),
        SummaryRow("Maximum", [_written(each, each.maximum, write) for each, write in found]),
    ]


def _written(found: Distribution, value: float, write: Callable[[float], str]) -> str:
    """Without measurements, zeros mean unknown."""
    return write(value) if found.quantiles else UNKNOWN


def _quantile(found: Distribution, index: int, write: Callable[[float], str]) -> str:
    return write(found.quantiles[index]) if found.quantiles else UNKNOWN


def setting_rows(given: Mapping[str, str]) -> list[SettingRow]:
    """How a run takes and restores its checkpoints: each setting, given or by default."""
    return [
        SettingRow(
            key=each.key,
            value=given.get(each.key, each.default),
            is_default=each.key not in given,
            help=each.help,
        )
        for each in DEFINITIONS
        if each.key.startswith(SETTINGS)
    ]
