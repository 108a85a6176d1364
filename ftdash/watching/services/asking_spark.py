"""Asks Spark one question, in a process of its own: the control plane never loads it.

The process ends when this one does: it holds the other end of the process's standard input.
"""

import os
import subprocess
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from django.conf import settings

from ftdash.supervision import java
from pipelines.domain.errors import UNDECODABLE, Rejected

SAID_LENGTH_MAX = 1_000
A = TypeVar("A")


def asked_of_spark(
    command: Sequence[str],
    question: object,
    kind: type[A],
    *,
    limit_s: float,
    failed: str,
    late: str,
) -> A:
    """The answer. Raises Rejected: with `late` after the limit, or with `failed` and the reason.

    When this returns or raises, the process has ended, and so has Spark.
    """
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb") as asked,
        os.fdopen(writing, "wb", buffering=0) as held,
        subprocess.Popen(
            command,
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=settings.BASE_DIR,
            env={**os.environ, **java.environment()},
        ) as process,
    ):
        held.write(msgspec.json.encode(question) + b"\n")
        try:
            answer, said = process.communicate(timeout=limit_s)
        except BaseException as error:
            process.kill()
            process.communicate()  # until Spark has ended too, which has its own ends of the pipes
            if isinstance(error, subprocess.TimeoutExpired):
                raise Rejected(late) from error
            raise
    if process.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise Rejected(f"{failed}: {last[:SAID_LENGTH_MAX]}")
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNDECODABLE as error:
        raise Rejected(f"{failed}: its answer cannot be read: {error}") from error
