"""Adds packages of authors to the store, and logs who added which one, or why it was refused."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from django.conf import settings as configuration

from ftdash.accounts.services import record, record_refusal
from ftdash.formats import size
from ftdash.jobs.validation import package_store
from pipelines.domain.errors import Rejected
from pipelines.domain.run import ShippedCode


def add(path: Path, *, who: str, reason: str) -> ShippedCode:
    """A wheel, or the folder of a package. Raises Rejected."""
    try:
        code = package_store().add(path)
    except Rejected as refusal:
        _log_refusal(path.name, who, reason, refusal)
        raise
    subject = f"package {code.package} {code.version}"
    record(who=who, what="added", subject=subject, reason=reason, detail=code.sha256)
    return code


def upload(
    name: str, size_bytes: int, chunks: Iterable[bytes], *, who: str, reason: str
) -> ShippedCode:
    """A wheel that a browser sent. Only the last part of its name counts. Raises Rejected."""
    most = configuration.PACKAGE_BYTES_MAX
    if size_bytes > most:
        refusal = Rejected(
            f"{name} has {size(size_bytes)}, and may have {size(most)}. Add it on the machine"
            " with `ftdash package add`."
        )
        _log_refusal(name, who, reason, refusal)
        raise refusal
    with tempfile.TemporaryDirectory(prefix="ftdash-upload-") as directory:
        file = Path(directory) / Path(name).name
        with file.open("wb") as stream:
            stream.writelines(chunks)
        return add(file, who=who, reason=reason)


def _log_refusal(name: str, who: str, reason: str, refusal: Rejected) -> None:
    record_refusal(
        who=who, what="tried to add", subject=f"package {name}", reason=reason, refusal=str(refusal)
    )
