"""Asks a plain Spark SQL batch query the same question and has it compare the answers.

The query shares no code with the engine, and runs as a separate process into which nothing of the
engine is loaded.
"""

import os
import subprocess
from pathlib import Path

import msgspec
from django.conf import settings

from ftdash.embedded.demo_pipeline import DemoPaths
from ftdash.embedded.outcome import OracleAnswer
from ftdash.embedded.stack import module
from ftdash.embedded.supervisor import last_words
from ftdash.supervision import java
from pipelines.domain.errors import Rejected

WITHIN_S = 120


def compare_with_batch(paths: DemoPaths) -> OracleAnswer:
    """Raises Rejected if the query does not answer in time."""
    home = Path(settings.FTDASH_HOME)
    log, answer = home / "logs" / "oracle.log", home / "oracle.json"
    ask(paths, answer, log)
    return msgspec.json.decode(answer.read_bytes(), type=OracleAnswer)


def ask(paths: DemoPaths, answer: Path, log: Path) -> None:
    arguments = (paths.data, paths.files_output, paths.sql_output, answer)
    command = module("pipelines.spark.flight_oracle", *map(str, arguments))
    environment = os.environ | java.environment()
    with log.open("wb") as output:
        try:
            subprocess.run(
                command,
                cwd=settings.BASE_DIR,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=WITHIN_S,
                check=True,
            )
        except subprocess.SubprocessError as failure:
            raise Rejected(f"The batch query failed: {failure}. {last_words(log)}") from failure
