"""The events as sources: generated while the pipeline runs, or read from files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pipelines.connectors import Draws, ParquetFiles, SeededGenerator
from pipelines.stream import Rejected

from nexmark.generator import EPOCH_EVENTS, Kind, Model
from nexmark.texts import Numbers

TIME_COLUMN = "date_time"
OUT_OF_ORDER_MS = 4_000


def positions_of_split(kind: Kind, split: int, splits: int, offsets: Numbers) -> Numbers:
    """Returns the positions of a split's events: of n splits, each takes every n-th fifty."""
    fifties, place = np.divmod(offsets, kind.count)
    return (fifties * splits + split) * kind.count + place


def generated(
    kind: Kind,
    model: Model,
    *,
    events: int,
    splits: int,
    columns: Sequence[str],
    events_per_s: float | None = None,
) -> SeededGenerator:
    """Generates the events of one kind among the first `events` of all kinds.

    `events_per_s` counts all kinds. Raises Rejected unless each split gets equally many events.
    """
    fifties, rest = divmod(events, EPOCH_EVENTS * splits)
    if rest or not fifties:
        raise Rejected(
            f"{events} events cannot be dealt to {splits} splits; give a multiple of"
            f" {EPOCH_EVENTS * splits}."
        )

    def rows(draws: Draws) -> list[pa.Array]:
        positions = positions_of_split(kind, draws.split, splits, draws.offsets)
        made = kind.made(model, kind.numbers(positions))
        return [made.column(name) for name in columns]

    share = kind.count / EPOCH_EVENTS
    return SeededGenerator(
        rows,
        schema=pa.schema([kind.schema.field(name) for name in columns]),
        seed=model.seed,
        splits=splits,
        rows_per_split=fifties * kind.count,
        rows_per_s=None if events_per_s is None else events_per_s * share,
        timestamp_column=TIME_COLUMN if TIME_COLUMN in columns else None,
        out_of_orderness_ms=OUT_OF_ORDER_MS,
    )


def stored(kind: Kind, directory: Path, columns: Sequence[str]) -> ParquetFiles:
    """Reads the files of one kind that `python -m nexmark parquet` wrote."""
    place = directory / kind.name
    return ParquetFiles(
        place,
        schema=pa.schema([kind.schema.field(name) for name in columns]),
        timestamp_column=TIME_COLUMN if TIME_COLUMN in columns else None,
        out_of_orderness_ms=OUT_OF_ORDER_MS,
        concurrent_splits=max(1, len(list(place.glob("*.parquet")))),  # their times overlap
    )
