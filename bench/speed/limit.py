"""The limit of the machine: parse and count in two processes; no exchange, state or checkpoint.

As in ours, only the key is converted. The bar of `pv` is a share of this limit, which the same call
measures.
"""

import multiprocessing
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc

from bench.events import COLUMNS

PROCESSES = 2


def limit_records_per_s(directory: Path, key: str, rounds: int) -> float:
    files = sorted(directory.glob("part-*.csv"))
    shares = [(files[i::PROCESSES] * rounds, key) for i in range(PROCESSES)]
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.map(_count, [(files[i : i + 1], key) for i in range(PROCESSES)])  # imports, caches
        began = time.monotonic()
        records = sum(pool.map(_count, shares))
        return records / (time.monotonic() - began)


def _count(share: tuple[list[Path], str]) -> int:
    paths, key = share
    pa.set_cpu_count(1)
    records = 0
    for path in paths:
        options = pc.ReadOptions(column_names=COLUMNS, block_size=4 << 20, use_threads=False)
        convert = pc.ConvertOptions(include_columns=[key])
        for batch in pc.open_csv(path, read_options=options, convert_options=convert):
            records += batch.num_rows
            keys = pa.table([batch.column(key)], names=["key"])
            keys.group_by("key", use_threads=False).aggregate([([], "count_all")])
    return records
