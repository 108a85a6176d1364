"""DataFrame functions: what they get, what they must return, and the refusal without pandas."""

import subprocess
import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from pipelines.connectors.in_process import BlackHole
from pipelines.domain.errors import Rejected
from pipelines.stream import Environment
from pipelines.testing import OperatorHarness

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])
TOTALS = pa.schema([("key", pa.string()), ("total", pa.int64())])


def test_a_function_takes_a_frame_and_returns_a_frame() -> None:
    def totals(frame: pd.DataFrame) -> pd.DataFrame:
        sums = frame.groupby("key", as_index=False)["n"].sum()
        return sums.rename(columns={"n": "total"})

    rows = [{"key": "a", "n": 1}, {"key": "b", "n": 2}, {"key": "a", "n": 3}]

    assert mapped(totals, rows) == [{"key": "a", "total": 4}, {"key": "b", "total": 2}]


def test_an_integer_that_pandas_turned_into_a_float_stays_an_integer() -> None:
    def renamed(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.rename(columns={"n": "total"})

    rows = [{"key": "a", "n": None}, {"key": None, "n": 2}]

    assert mapped(renamed, rows) == [{"key": "a", "total": None}, {"key": None, "total": 2}]


def test_the_order_and_the_index_of_the_frame_do_not_matter() -> None:
    def turned(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"total": frame["n"] + 1, "key": frame["key"]}).set_index(frame["n"])

    assert mapped(turned, [{"key": "a", "n": 1}]) == [{"key": "a", "total": 2}]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"key": ["a"]}, r"returned a DataFrame with the columns \(key\) where it declared"),
        ({"key": ["a"], "total": ["x"]}, "does not fit its column: .*total"),
        ({"key": ["a"], "total": [1.5]}, "does not fit its column: .*total"),
    ],
)
def test_a_frame_other_than_declared_is_refused(columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        mapped(lambda frame: pd.DataFrame(columns), [{"key": "a", "n": 1}])


def test_without_pandas_the_pipeline_is_refused_when_it_is_built() -> None:
    program = """
import sys

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoPandas())
import pyarrow as pa
from pipelines.domain.errors import Rejected
from pipelines.stream import Environment
rows = Environment().from_rows([{"n": 1}], uid="rows")
try:
    rows.map_pandas(lambda frame: frame, pa.schema([("n", pa.int64())]), uid="mapped")
except Rejected as refusal:
    print(refusal)
"""

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )

    assert "'mapped' cannot be built: map_pandas needs pandas" in ran.stdout


def mapped(function: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    environment = Environment()
    source = environment.from_rows([], SCHEMA, uid="rows")
    source.map_pandas(function, TOTALS, uid="mapped").sink(BlackHole(), uid="out")
    harness = OperatorHarness(environment.build(), "mapped")
    harness.push(rows)
    return harness.output()
