"""Starts a benchmark's run without Spark, so that the benchmark itself can be tested quickly."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.driven_run import StartedRun
from tests.processes.host import hosted_run


def on_processes(
    root: Path, parameters: dict[str, str], settings: dict[str, str]
) -> AbstractContextManager[StartedRun]:
    asked: dict[str, object] = {"pipeline": "page_view_count", "parameters": parameters}
    return hosted_run(root, settings=settings, asked=asked)
