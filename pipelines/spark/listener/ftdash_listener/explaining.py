"""Describes the state that Spark would keep for your new code: stateful operators and schemas.

    from ftdash_listener import explain

    explain(orders_by_hour, "plan.json", output_mode="append")

Spark plans the query as at its first batch. The metadata and the schemas of state that it would
write into the checkpoint go into a temporary directory. No batch runs, and no source is read. You
give the file to the page, the command or the API that judges a rewind.

Source: Spark 4, `IncrementalExecution`, which writes both while it plans a first batch. Its
constructor differs from version to version, so this module finds the arguments by their names.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 1
EXECUTIONS = (  # Spark 4.1 moved the class
    "org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution",
    "org.apache.spark.sql.execution.streaming.IncrementalExecution",
)
DEFAULT = "$lessinit$greater$default$"
"""How Scala names the methods that give default arguments."""

KINDS = {"kafka": "kafka", "filesource": "file", "filestreamsource": "file", "rate": "rate"}


class CannotExplain(Exception):
    """The message says why, and what to do."""


def explain(rows: DataFrame, path: str, output_mode: str = "append") -> dict[str, Any]:
    """Write the plan of the streaming query whose `writeStream` would take `rows`.

    `output_mode`: as in your `writeStream`. Returns the plan that it wrote. Raises CannotExplain.
    """
    if not getattr(rows, "isStreaming", False):
        raise CannotExplain("This is no stream: give the DataFrame before its writeStream.")
    if not hasattr(rows, "_jdf"):
        raise CannotExplain("Spark Connect does not show plans: run explain in a classic session.")
    if int(pyspark.__version__.split(".")[0]) < 4:
        raise CannotExplain("Spark 3.5 writes no metadata of operators: run explain with Spark 4.")
    with tempfile.TemporaryDirectory(prefix="ftdash-explain-") as place:
        state = Path(place) / "state"
        plan = rows._jdf.queryExecution().analyzed()
        try:
            _Planning(rows, state, output_mode).plan(plan)
        except CannotExplain:
            raise
        except Exception as problem:
            raise CannotExplain(f"Spark does not plan this query: {problem}") from problem
        explanation = {
            "format": FORMAT,
            "spark": pyspark.__version__,
            "operators": _operators(state),
            "sources": _sources(plan),
            "shuffle_partitions": int(_conf(rows, "spark.sql.shuffle.partitions", "200")),
            "store_class": _conf(rows, "spark.sql.streaming.stateStore.providerClass", ""),
        }
    Path(path).write_text(json.dumps(explanation, indent=1))
    return explanation


class _Planning:
    """Plans a query by Java reflection, through py4j."""

    def __init__(self, rows: DataFrame, state: Path, output_mode: str) -> None:
        self._jvm: Any = rows.sparkSession._jvm
        self._gateway: Any = rows.sparkSession._sc._gateway
        mode = self._jvm.org.apache.spark.sql.streaming.OutputMode
        if output_mode not in ("append", "complete", "update"):
            raise CannotExplain(f"There is no output mode {output_mode}: append, complete, update.")
        self._given = {
            "sparkSession": rows._jdf.sparkSession(),
            "outputMode": getattr(mode, output_mode.capitalize())(),
            "checkpointLocation": state.as_uri(),
            "queryId": self._jvm.java.util.UUID.randomUUID(),
            "runId": self._jvm.java.util.UUID.randomUUID(),
            "currentBatchId": self._jvm.java.lang.Long.valueOf(0),
            "isFirstBatch": True,
        }

    def plan(self, logical: Any) -> None:
        execution = self._class(*EXECUTIONS)
        maker = execution.getConstructors()[0]
        arguments = []
        for index, parameter in enumerate(maker.getParameters()):
            name, kind = parameter.getName(), parameter.getType().getName()
            arguments.append(self._argument(execution, index, name, kind, logical))
        made = maker.newInstance(self._array(arguments))
        made.executedPlan()

    def _argument(self, execution: Any, index: int, name: str, kind: str, logical: Any) -> Any:
        if name == "logicalPlan":
            return logical
        if name in self._given:
            return self._given[name]
        if name == "prevOffsetSeqMetadata":
            return self._module("scala.None$")
        if name == "offsetSeqMetadata":
            return self._offsets(kind)
        if name == "watermarkPropagator":
            return self._module(f"{kind}$").noop()
        return self._static(execution, f"{DEFAULT}{index + 1}")

    def _offsets(self, kind: str) -> Any:
        """Makes the offsets of a batch with watermark and time 0, and without settings."""
        offsets = self._class(kind[: -len("Base")] if kind.endswith("Base") else kind)
        zero = self._jvm.java.lang.Long.valueOf(0)
        makers = sorted(offsets.getConstructors(), key=lambda each: len(each.getParameters()))
        count = len(makers[-1].getParameters())
        more = [self._static(offsets, f"{DEFAULT}{n + 1}") for n in range(2, count)]
        return makers[-1].newInstance(self._array([zero, zero, *more]))

    def _class(self, *names: str) -> Any:
        for name in names:
            try:
                return self._jvm.java.lang.Class.forName(name)
            except Exception:  # py4j: ClassNotFoundException
                continue
        raise CannotExplain(f"Spark {pyspark.__version__} has no {names[0]}; use Spark 4.")

    def _module(self, name: str) -> Any:
        return self._class(name).getField("MODULE$").get(None)

    def _static(self, of: Any, name: str) -> Any:
        methods = [each for each in of.getMethods() if each.getName() == name]
        if not methods:
            raise CannotExplain(f"Spark {pyspark.__version__} is not known to explain.")
        return methods[0].invoke(None, self._array([]))

    def _array(self, values: list[Any]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array


def _operators(state: Path) -> list[dict[str, Any]]:
    """Returns the operators as Spark has written them, in the order of their ids."""
    found = []
    for folder in sorted(state.glob("[0-9]*"), key=lambda each: int(each.name)):
        newest = sorted((folder / "_metadata").rglob("[a-z0-9]*"), key=lambda each: each.is_file())
        if not newest or not newest[-1].is_file():
            raise CannotExplain(f"Spark has not described the operator {folder.name}.")
        described = json.loads(newest[-1].read_text().partition("\n")[2])
        found.append(
            {
                "id": int(folder.name),
                "name": described["operatorInfo"]["operatorName"],
                "schemas": {
                    "default" if file.parents[1].name == "0" else file.parents[1].name: (
                        base64.b64encode(file.read_bytes()).decode()
                    )
                    for file in sorted((folder / "0").rglob("_metadata/schema"))
                },
            }
        )
    return found


def _sources(plan: Any) -> list[str]:
    """Returns the kinds of the sources, in the order of Spark's ids."""
    leaves = plan.collectLeaves()
    kinds = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if not leaf.isStreaming():
            continue
        text = leaf.simpleString(200).lower()
        kinds.append(next((kind for word, kind in KINDS.items() if word in text), "other"))
    return kinds


def _conf(rows: DataFrame, key: str, default: str) -> str:
    return str(rows.sparkSession.conf.get(key, default))
