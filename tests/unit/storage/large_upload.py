"""A program that uploads one file and prints the peak growth of its memory in MiB.

Run `python -m tests.unit.storage.large_upload ROOT MIB`; the environment names the object store.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pipelines.storage.object_store import ObjectCheckpointStore

SCHEMA = pa.schema([("blob", pa.binary())])
BATCH_BYTES = 1 << 20


def main() -> None:
    root, mib = sys.argv[1], int(sys.argv[2])
    store = ObjectCheckpointStore([root])
    store.write_batches(f"{root}/warm", "up", SCHEMA, batches(20), open_format=False)
    before = peak_mib()
    store.write_batches(f"{root}/chk-1", "large", SCHEMA, batches(mib), open_format=False)
    print(peak_mib() - before)


def batches(mib: int) -> Iterator[pa.RecordBatch]:
    for number in range(mib):
        blob = bytes([number % 256]) * BATCH_BYTES
        yield pa.RecordBatch.from_arrays([pa.array([blob])], schema=SCHEMA)


def peak_mib() -> float:
    """Returns the peak memory of this program alone; `getrusage` also counts its parent."""
    [line] = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
