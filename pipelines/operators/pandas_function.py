"""Functions of pandas DataFrames, with a declared output.

pandas is imported when such a function is added to a pipeline, and by nothing else of the engine.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from pipelines.domain.errors import Rejected
from pipelines.operators.stateless import BatchFunction

if TYPE_CHECKING:
    import pandas as pd

PandasMapping: TypeAlias = "Callable[[pd.DataFrame], pd.DataFrame]"
"""One batch in, any number of rows out; the index is ignored."""


class PandasFunction(BatchFunction):
    """Guarantee: the operators after it see only batches of `schema`."""

    def __init__(self, function: PandasMapping, schema: pa.Schema) -> None:
        super().__init__(lambda batch: _mapped(function, batch, schema), schema)

    def output_schema(self, inputs: list[pa.Schema]) -> pa.Schema:
        """Raises Rejected where pandas is missing."""
        try:
            import pandas  # noqa: F401 - only authors of such functions need it
        except ImportError as error:
            raise Rejected(
                "map_pandas needs pandas, which is not installed; run `pip install pandas`, or use"
                " map_batches."
            ) from error
        return super().output_schema(inputs)


def _mapped(function: PandasMapping, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Raises Rejected if the frame does not have the declared columns, or a value does not fit."""
    frame = function(batch.to_pandas())
    if set(frame.columns) != set(schema.names):
        raise Rejected(
            f"The function returned a DataFrame with the columns ({', '.join(map(str, frame))})"
            f" where it declared ({', '.join(schema.names)})."
        )
    try:
        return pa.RecordBatch.from_pandas(frame, schema=schema, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = "; ".join(map(str, error.args))
        raise Rejected(f"A value of the DataFrame does not fit its column: {reason}") from error
