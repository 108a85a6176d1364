"""Files that would unpack into far more than their size are refused before they are unpacked."""

import errno
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.domain.errors import CorruptSnapshot, Retryable
from pipelines.domain.snapshots import EXPANSION_MAX
from pipelines.storage.state_file import decoded, encoded, problem_of_layout
from tests.kept_examples import KEPT

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string()), ("late", pa.bool_())])
REPETITIVE = 500_000


@pytest.mark.parametrize("rows", [0, 1, 1_000, REPETITIVE])
@pytest.mark.parametrize("name", ["state.arrow", "state.parquet"])
def test_every_file_that_the_store_writes_is_read_however_repetitive(name: str, rows: int) -> None:
    batch = batch_of(rows)
    pieces = encoded(SCHEMA, [batch], open_format=name.endswith("parquet"))

    found = pa.Table.from_batches(decoded(name, joined(pieces)), SCHEMA)

    assert found.equals(pa.Table.from_batches([batch]))


def test_the_most_compressible_lz4_state_is_still_read() -> None:
    """Checkpoints may use LZ4, which stays just below the bound."""
    batch = pa.record_batch({"zero": pa.array(np.zeros(2_000_000, np.int64))})
    pieces = encoded(batch.schema, [batch], open_format=False, compresses=True)
    content = joined(pieces)

    [found] = decoded("state.arrow", content)

    assert found.equals(batch)
    assert batch.nbytes > 200 * content.size


@pytest.mark.parametrize("name", ["state.arrow", "state.parquet"])
def test_long_texts_that_compress_well_are_read(name: str) -> None:
    texts = pa.array([f"{'a' * 4_000}{number}" for number in range(2_000)])
    batch = pa.record_batch({"text": texts})
    pieces = encoded(batch.schema, [batch], open_format=name.endswith("parquet"))

    assert pa.Table.from_batches(decoded(name, joined(pieces))).num_rows == 2_000


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_arrow_file_is_read_when_it_stays_within_bounds(codec: str) -> None:
    keys = np.random.default_rng(1).integers(0, 2**60, 10_000)
    batch = pa.record_batch({"key": pa.array(keys)})

    [found] = decoded("state.arrow", arrow_file(batch, codec))

    assert found.equals(batch)


@pytest.mark.parametrize("rows", [100_000, 10_000_000])
def test_a_compressed_arrow_file_that_explodes_is_refused_by_name(rows: int) -> None:
    bomb = arrow_file(pa.record_batch({"key": pa.array(np.zeros(rows, np.int64))}), "zstd")
    assert 8 * rows > EXPANSION_MAX * bomb.size

    with pytest.raises(CorruptSnapshot, match=r"state\.arrow would unpack"):
        list(decoded("state.arrow", bomb))


def test_a_forged_size_in_an_arrow_file_is_refused_before_anything_is_allocated() -> None:
    keys = np.arange(1_000)
    content = bytearray(arrow_file(pa.record_batch({"key": pa.array(keys)}), "lz4").to_pybytes())
    honest = struct.pack("<q", 8 * len(keys))
    assert content.count(honest) >= 1
    forged = content.replace(honest, struct.pack("<q", 1 << 45))

    with pytest.raises(CorruptSnapshot, match=r"state\.arrow would unpack"):
        list(decoded("state.arrow", pa.py_buffer(bytes(forged))))


@pytest.mark.parametrize("codec", ["gzip", "zstd", "brotli"])
def test_a_parquet_file_that_explodes_is_refused_by_name(codec: str) -> None:
    zeros = pa.table({"key": pa.array(np.zeros(2_000_000, np.int64))})
    sink = pa.BufferOutputStream()
    pq.write_table(zeros, sink, compression=codec, use_dictionary=False)

    with pytest.raises(CorruptSnapshot, match=r"state\.parquet would unpack"):
        list(decoded("state.parquet", sink.getvalue()))


def batch_of(rows: int) -> pa.RecordBatch:
    """Returns the most repetitive state possible: all rows are equal."""
    columns = [pa.array([7] * rows), pa.array(["JFK"] * rows), pa.array([True] * rows)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def arrow_file(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def joined(pieces) -> pa.Buffer:  # type: ignore[no-untyped-def]
    return pa.py_buffer(b"".join(pieces))


@pytest.mark.parametrize(
    "error", [pa.ArrowMemoryError("malloc of size 8 failed"), OSError(errno.EIO, "I/O error")]
)
def test_a_read_error_of_the_machine_does_not_count_as_file_damage(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    content = joined(encoded(SCHEMA, [batch_of(3)], open_format=False))

    def fail(_: object) -> object:
        raise error

    monkeypatch.setattr(pa.ipc, "open_file", fail)

    with pytest.raises(Retryable, match=r"state\.arrow cannot be read"):
        list(decoded("state.arrow", content))


def test_a_parquet_file_with_a_name_that_is_no_text_is_refused_by_name() -> None:
    content = pa.py_buffer(KEPT["Parquet"][0])

    assert "state.parquet holds no rows" in str(problem_of_layout("state.parquet", content))
