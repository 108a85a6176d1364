"""Parses blocks of CSV into batches at the speed of Arrow, from any line on.

Until a block holds a quote, each line is a record and only the wanted columns are converted (1.4
times as fast for one column of three). From the first quote on all columns are converted, so that a
value with a line break is refused in any column. `csv_lines` finds the line that does not fit.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv

from pipelines.connectors.files.csv_layout import CsvLayout
from pipelines.connectors.files.csv_lines import of_one_line_each

QUOTE = b'"'


class Quoted(Exception):
    """A block that was read ahead contains a quote."""


def unquoted(
    file: Path, layout: CsvLayout, skip: int, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The records after the first `skip` lines of a file that is not empty.

    Raises Quoted after some of the records before the first quote, and ArrowInvalid.
    """
    content = pa.TransformInputStream(pa.OSFile(str(file)), _without_quote)
    return iter(_opened(content, layout, skip, block_bytes, are_quoted=False))


def quoted(file: Path, layout: CsvLayout, skip: int, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Like `unquoted`, for any content. Raises ArrowInvalid."""
    content = pa.OSFile(str(file))
    for batch in _opened(content, layout, skip, block_bytes, are_quoted=True):
        yield layout.as_declared(of_one_line_each(batch))


def _without_quote(block: pa.Buffer) -> pa.Buffer:
    if QUOTE in block.to_pybytes():
        raise Quoted
    return block


def _opened(
    content: pa.NativeFile, layout: CsvLayout, skip: int, block_bytes: int, *, are_quoted: bool
) -> pacsv.CSVStreamingReader:
    return pacsv.open_csv(
        content,
        read_options=pacsv.ReadOptions(
            column_names=layout.columns,
            block_size=block_bytes,
            skip_rows_after_names=skip,
            use_threads=False,
        ),
        parse_options=pacsv.ParseOptions(
            quote_char='"' if are_quoted else False, ignore_empty_lines=False
        ),
        convert_options=layout.conversion(of_all=are_quoted),
    )
