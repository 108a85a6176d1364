"""Questions about an author's code, answered by a process that imports it afresh.

A web server or a worker lives for weeks. If a file changes, the next driver runs other code than
the server once imported. So the server starts a process for each question, and gets the answer for
the code that would run now. Code that hangs or ends that process does no harm. A process that has
just started, such as a command, calls `answered` itself.

The question comes as JSON on standard input; the answer goes to standard output. Anything that the
author's code prints goes to standard error.
"""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from pipelines.domain.clock import patience_s, waiting_at_most
from pipelines.domain.errors import UNDECODABLE, BrokenCode, Rejected, Retryable
from pipelines.domain.guarantees import EndToEnd, check_required, end_to_end
from pipelines.domain.ids import Uid
from pipelines.domain.run import Parameter, ShippedCode
from pipelines.domain.settings.parsing import parse_settings
from pipelines.flows.finding import Flow, find_flow
from pipelines.packages.store import stored_code
from pipelines.points.input import check_replayable
from pipelines.points.preflight import RestoreQuestion, preflight, repeated, takeovers
from pipelines.points.verdict import Verdict
from pipelines.storage.stores import CheckpointStores

TIMEOUT_S = 120.0
"""A process whose code has not answered by then is killed."""

AT_ONCE_MAX = 4
LAST_WORDS = 300

T = TypeVar("T")

_places = threading.BoundedSemaphore(AT_ONCE_MAX)


class AboutCode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """If `code` is None, an installed package holds the flow."""

    flow: str
    jobs_root: str
    code: ShippedCode | None = None

    def found(self) -> Flow:
        """Raises Rejected if the flow cannot be found."""
        return find_flow(self.flow, stored_code(self.code, Path(self.jobs_root)))


class MayStart(AboutCode, frozen=True, kw_only=True):
    """May the flow start with these values? The answer is the guarantee that it gives."""

    parameters: dict[str, str]
    settings: dict[str, str]

    def answered(self) -> EndToEnd:
        pipeline, settings = self.found().build(self.parameters), parse_settings(self.settings)
        found = end_to_end(settings.barriers.mode, pipeline.ends)
        check_required(settings.required_guarantee, found)
        pipeline.check_fits(settings)
        pipeline.validate_sinks()
        return found


class MayRead(AboutCode, frozen=True, kw_only=True):
    """Are the flow's sources there, as it needs them?"""

    parameters: dict[str, str]
    settings: dict[str, str]

    def answered(self) -> None:
        pipeline = self.found().build(self.parameters)
        pipeline.validate_sources(parse_settings(self.settings))


class OutputNotes(AboutCode, frozen=True, kw_only=True):
    """What would a start from nothing do to existing output? The answer is in sentences."""

    parameters: dict[str, str]
    installation: str
    newest_run: str  # the directory of the pipeline's newest run; empty if there is none

    def answered(self) -> list[str]:
        pipeline = self.found().build(self.parameters)
        held = takeovers(pipeline, self.installation)
        return [*held, *repeated(pipeline, self.newest_run, None)]


class MayRestore(AboutCode, frozen=True, kw_only=True):
    """May the run be restored? `question` comes without its code."""

    question: RestoreQuestion
    roots: list[str]

    def answered(self) -> Verdict:
        code = stored_code(self.code, Path(self.jobs_root))
        stores = CheckpointStores(self.roots, max_memory_state_bytes=0)
        return preflight(replace(self.question, code=code), stores)


class MayReplay(AboutCode, frozen=True, kw_only=True):
    """How many records of the quarantine would each source replay?"""

    parameters: dict[str, str]
    settings: dict[str, str]
    path: str
    quarantine: str
    only: list[str]
    roots: list[str]

    def answered(self) -> dict[Uid, int]:
        manifest = CheckpointStores(self.roots, max_memory_state_bytes=0).manifest(self.path)
        pipeline, settings = self.found().build(self.parameters), parse_settings(self.settings)
        return check_replayable(manifest, pipeline, settings, self.quarantine, self.only)


class ItsParameters(AboutCode, frozen=True, kw_only=True):
    def answered(self) -> list[Parameter]:
        return list(self.found().parameters)


Question = MayStart | MayRead | OutputNotes | MayRestore | MayReplay | ItsParameters


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    question: Question
    at_most_s: float  # for each question to a server


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The error that `answered` raised."""

    text: str
    traceback: str = ""  # of the author's code
    is_retryable: bool = False


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    value: msgspec.Raw = msgspec.Raw(b"null")
    refused: Refused | None = None


def answer_afresh(
    question: Question, kind: type[T], directory: Path, environment: dict[str, str] | None = None
) -> T:
    """Lets a new process in `directory` answer; `kind` is the type of the answer.

    The process gets exactly `environment`; None means the environment of this process.

    Raises the error that answering raised: Rejected, BrokenCode or Retryable. Raises Rejected, too,
    if the author's code ends the process or hangs, or if too many processes are answering already.
    """
    if not _places.acquire(timeout=TIMEOUT_S):
        raise Rejected("Too many questions about code are being answered; ask again in a minute.")
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pipelines.points.code_process"],
            input=msgspec.json.encode(Inquiry(question=question, at_most_s=patience_s(TIMEOUT_S))),
            cwd=directory,
            env=environment,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise Rejected(
            f"The code of {question.flow} did not answer within {TIMEOUT_S:.0f} s; see what its"
            " import waits for."
        ) from late
    finally:
        _places.release()
    return _read(question, ended, kind)


def _read(question: Question, ended: subprocess.CompletedProcess[bytes], kind: type[T]) -> T:
    try:
        found = msgspec.json.decode(ended.stdout, type=Answered)
    except UNDECODABLE as error:
        words = ended.stderr.decode(errors="replace").strip()[-LAST_WORDS:]
        raise Rejected(
            f"The process that read the code of {question.flow} ended with status"
            f" {ended.returncode} and no answer: {words or 'it said nothing'}."
        ) from error
    if found.refused is None:
        return msgspec.json.decode(found.value, type=kind)
    if found.refused.is_retryable:
        raise Retryable(found.refused.text)
    if found.refused.traceback:
        raise BrokenCode(found.refused.text, found.refused.traceback)
    raise Rejected(found.refused.text)


def _answered(question: Question) -> Answered:
    try:
        return Answered(value=msgspec.Raw(msgspec.json.encode(question.answered())))
    except Rejected as refusal:
        trace = refusal.traceback if isinstance(refusal, BrokenCode) else ""
        return Answered(refused=Refused(text=str(refusal), traceback=trace))
    except Retryable as error:
        return Answered(refused=Refused(text=str(error), is_retryable=True))


def main() -> None:
    inquiry = msgspec.json.decode(sys.stdin.buffer.read(), type=Inquiry)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as stream:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        with waiting_at_most(inquiry.at_most_s):
            stream.write(msgspec.json.encode(_answered(inquiry.question)))


if __name__ == "__main__":
    main()
