"""The packages of this installation, for commands."""

from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from pipelines.packages.store import CodeStore


def package_store() -> "CodeStore":
    from pipelines.packages.store import CodeStore

    return CodeStore(Path(settings.JOBS_ROOT))
