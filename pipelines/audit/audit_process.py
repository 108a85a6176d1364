"""An audit in a process of its own: `python -m pipelines.audit.audit_process RUN_DIR`.

An audit builds the pipeline to learn its sinks, so it runs the author's code, which must not see
the environment and memory of the control plane. The process answers in lines of JSON on standard
output. Anything that the author's code prints goes to standard error.
"""

import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import IO

import msgspec

from pipelines.audit.auditor import Tell, audit
from pipelines.audit.report import AuditReport
from pipelines.bus.journal import JournalCutShort, UndecodableEvent
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.domain.run import RunDirectory


class Step(msgspec.Struct, frozen=True, tag=True):
    text: str


class Found(msgspec.Struct, frozen=True, tag=True):
    report: AuditReport


class Impossible(msgspec.Struct, frozen=True, tag=True):
    problem: str


Line = Step | Found | Impossible


def audit_afresh(
    run: RunDirectory, tell: Tell, directory: Path, environment: dict[str, str]
) -> AuditReport:
    """Lets a new process in `directory` audit the run; it gets exactly `environment`.

    Raises Rejected if the audit is impossible, or if the process ends without an answer.
    """
    command = [sys.executable, "-m", "pipelines.audit.audit_process", str(run.path)]
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            return _report(process.stdout or [], tell)
        except UNDECODABLE as error:
            raise Rejected(
                f"The process of the audit ended with status {process.wait()} and no answer; see"
                " audit.log of the run."
            ) from error


def _report(lines: "IO[bytes] | list[bytes]", tell: Tell) -> AuditReport:
    for text in lines:
        match msgspec.json.decode(text, type=Line):
            case Step(step):
                tell(step)
            case Found(report):
                return report
            case Impossible(problem):
                raise Rejected(problem)
    raise msgspec.DecodeError("there is no report")


def _answer(run: RunDirectory, tell: Tell) -> Line:
    try:
        return Found(audit(run, tell))
    except (Rejected, UndecodableEvent, JournalCutShort) as problem:
        return Impossible(str(problem))
    except Exception as error:
        traceback.print_exc()
        return Impossible(f"It failed with {type(error).__name__}; see audit.log of the run.")


def main() -> None:
    run = RunDirectory(Path(sys.argv[1]))
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0) as stream:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def say(line: Line) -> None:
            stream.write(msgspec.json.encode(line) + b"\n")

        say(_answer(run, lambda step: say(Step(step))))


if __name__ == "__main__":
    main()
