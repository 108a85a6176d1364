"""Refuses what cannot run, in one sentence, before anything is stored or started."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings as configuration

from ftdash.jobs.directories import run_directory
from ftdash.jobs.fresh_code import answer
from ftdash.jobs.models import Run
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.guarantees import EndToEnd
from pipelines.domain.run import Parameter, ShippedCode
from pipelines.domain.settings import check_parallelism
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.texts import check_no_secrets
from pipelines.storage.roots import StorageRoots, check_placement, configured_roots

if TYPE_CHECKING:
    from pipelines.packages.loading import LoadedCode
    from pipelines.packages.store import CodeStore

FLOW_LENGTH_MAX = 80
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise Rejected(
            f"The pipeline name {name!r} cannot be used; take up to 80 lower-case letters, digits,"
            " '-' and '_', and begin with a letter or digit."
        )


def check_declared(flow: str) -> None:
    """Programs start only declared pipelines, and cannot have any other module imported."""
    from pipelines.flows.finding import declared_flows

    if flow not in declared_flows():
        raise Rejected(
            f"There is no pipeline {flow!r} here; declare it by an entry point or in"
            " FTDASH_PIPELINES."
        )


def check_reason(reason: str) -> str:
    """Returns the reason without blanks around it. Raises Rejected if it is empty."""
    if not reason.strip():
        raise Rejected("Say why in a few words; the reason is kept in the audit log.")
    return reason.strip()


def check_startable(
    flow: str,
    parallelism: int,
    max_parallelism: int,
    parameters: dict[str, str],
    settings: dict[str, str],
    code: ShippedCode | None = None,
) -> EndToEnd:
    """Returns the guarantee from end to end.

    Raises Rejected, naming the flow, parameter, column, setting or number that is wrong or that
    holds a password. Raises it too if less is guaranteed than the settings require.
    """
    if len(flow) > FLOW_LENGTH_MAX:
        raise Rejected(
            f"The pipeline {flow} has {len(flow)} characters in its name, and may have"
            f" {FLOW_LENGTH_MAX}; declare it under a shorter one in FTDASH_PIPELINES."
        )
    check_no_secrets("parameter", parameters)
    check_no_secrets("setting", settings)
    check_parallelism(parallelism, max_parallelism)
    parsed = parse_settings(settings)
    with _refused_when_silent():
        check_placement(parsed.storage, roots())
    # The engine loads Arrow, which takes longer than a page should; most requests start nothing.
    from pipelines.points.code_process import MayStart

    question = MayStart(
        flow=flow,
        code=code,
        jobs_root=str(configuration.JOBS_ROOT),
        parameters=parameters,
        settings=settings,
    )
    return answer(question, EndToEnd)


def package_store() -> "CodeStore":
    """Returns the packages of this installation."""
    from pipelines.packages.store import CodeStore

    return CodeStore(Path(configuration.JOBS_ROOT))


def loaded_code(code: ShippedCode | None) -> "LoadedCode | None":
    """Loads code from this installation's packages. Raises Rejected if it is gone or altered."""
    from pipelines.packages.store import stored_code

    return stored_code(code, Path(configuration.JOBS_ROOT))


def check_sources(
    flow: str,
    parameters: dict[str, str],
    settings: dict[str, str],
    code: ShippedCode | None = None,
) -> None:
    """Raises Rejected, naming the file or column. Not for a restore: it may not read it all."""
    from pipelines.points.code_process import MayRead

    question = MayRead(
        flow=flow,
        code=code,
        jobs_root=str(configuration.JOBS_ROOT),
        parameters=parameters,
        settings=settings,
    )
    answer(question, type(None))


def output_notes(
    flow: str, parameters: dict[str, str], newest: Run | None, code: ShippedCode | None = None
) -> list[str]:
    """Returns notes on a start from nothing: one sentence for each output that needs one.

    These are outputs that a run of another installation holds, and outputs that are published
    again. `newest` is the pipeline's run before the start.
    """
    from pipelines.points.code_process import OutputNotes

    question = OutputNotes(
        flow=flow,
        code=code,
        jobs_root=str(configuration.JOBS_ROOT),
        parameters=parameters,
        installation=configuration.INSTALLATION_ID,
        newest_run="" if newest is None else str(run_directory(newest).path),
    )
    return answer(question, list[str])


def parameters_of(flow: str) -> list[Parameter]:
    """Returns the parameters of a declared flow, as its code is now. Raises Rejected."""
    from pipelines.points.code_process import ItsParameters

    question = ItsParameters(flow=flow, jobs_root=str(configuration.JOBS_ROOT))
    return answer(question, list[Parameter])


def check_place(path: str) -> None:
    """Raises Rejected if `path` lies outside the storage of this installation.

    It also does so if the storage does not answer.
    """
    with _refused_when_silent():
        StorageRoots(roots()).check(path)


@contextmanager
def _refused_when_silent() -> Iterator[None]:
    """A request does not wait for a storage; the person who made it may try again."""
    try:
        yield
    except Retryable as error:
        raise Rejected(f"{error}. Try again when the storage answers.") from error


def roots() -> list[str]:
    """Returns where snapshots may lie: nothing outside is read, written or deleted."""
    return configured_roots(Path(configuration.JOBS_ROOT))


def check_slot(slot: int | None, slot_count: int) -> None:
    """Raises Rejected if `slot` is None or out of range."""
    if slot is None:
        raise Rejected(f"Name the slot that is to be hit; there are 0 to {slot_count - 1}.")
    if not 0 <= slot < slot_count:
        raise Rejected(f"There is no slot {slot}; choose 0 to {slot_count - 1}.")
