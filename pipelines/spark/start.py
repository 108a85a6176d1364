"""Starts Spark's own driver, or says in a sentence why it does not start.

On YARN that takes until the ResourceManager has started an application master for it. Spark waits
without a limit; `slot.request.timeout` is one, and a person may cancel the run meanwhile.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pipelines.domain.errors import Rejected, Retryable
from pipelines.runtime.master.run_context import StartGivenUp

YARN = "yarn"
CONFIGURATION = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
SITE = "yarn-site.xml"
TURN_S = 0.2
"""How often the wait for YARN looks for a cancellation."""

Started = TypeVar("Started")


def check_configured(master: str) -> None:
    """Raises Rejected if the driver cannot know where YARN is."""
    if master != YARN:
        return
    named = {name: os.environ[name] for name in CONFIGURATION if os.environ.get(name)}
    if not named:
        raise Rejected(
            "The master is yarn, and HADOOP_CONF_DIR is not set. Set it to the directory that holds"
            f" {SITE}, where the workers of ftdash start, and start the run again."
        )
    if not any((Path(directory) / SITE).is_file() for directory in named.values()):
        where = " or ".join(f"{directory} ({name})" for name, directory in named.items())
        raise Rejected(
            f"The master is yarn, and there is no {SITE} in {where}; copy the configuration of the"
            " cluster there, and start the run again."
        )


def started(
    start: Callable[[], Started],
    master: str,
    within_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Started:
    """What `start` returns. A start on YARN that is given up goes on in its thread, until this
    process ends.

    Raises:
        Rejected: caused by a Retryable, Spark does not start there now.
        StartGivenUp: `is_cancelled` while YARN had not started the application.
    """
    try:
        if master != YARN:
            return start()
        thread = ThreadPoolExecutor(1, thread_name_prefix="spark-start")
        starting = thread.submit(start)
        thread.shutdown(wait=False)
        for _ in range(math.ceil(within_s / TURN_S)):
            if wait([starting], min(TURN_S, within_s)).done:
                return starting.result()
            if is_cancelled():
                raise StartGivenUp
        raise TimeoutError
    except TimeoutError:
        why = (
            f"YARN has not started the application of this run within {within_s:g} s"
            " (slot.request.timeout): its ResourceManager does not answer, or its queue is full."
            " Look at the queue with `yarn application -list`, and start the run again."
        )
    except (Py4JJavaError, PySparkException) as error:
        why = f"Spark does not start on {master}: {_first_line(error)}"
    raise Rejected(why) from Retryable(why)


def _first_line(error: Py4JJavaError | PySparkException) -> str:
    told = str(error.java_exception if isinstance(error, Py4JJavaError) else error)
    return told.strip().partition("\n")[0]
