"""An author's machine needs no dashboard, Spark, Java or connector client."""

import subprocess
import sys

import pytest

ABSENT = (
    *("django", "celery", "pyspark", "py4j", "ftdash"),
    *("redis", "psycopg", "pgpq", "kafka", "confluent_kafka", "obstore"),
)


MODULES = [f"pipelines.{name}" for name in ("stream", "connectors", "local", "testing")]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_an_authors_module_imports_without_packages_it_does_not_need(module: str) -> None:
    program = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None
import {module}
"""

    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
