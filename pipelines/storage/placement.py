"""Decides which storage an installation allows a run to use; asked at submission and by the driver.

The roots are the directory of all jobs and those in `FTDASH_STORAGE_ROOTS`. Only the operator of
the installation sets that, so a setting of a run cannot reach anywhere else.
"""

import os
from pathlib import Path

from pipelines.domain.errors import Rejected
from pipelines.domain.settings import Settings
from pipelines.domain.settings.storage_settings import CHECKPOINT_DIR, SAVEPOINT_DIR
from pipelines.storage.roots import StorageRoots

ROOTS_VARIABLE = "FTDASH_STORAGE_ROOTS"
"""Directories and `s3://bucket/prefix`, separated by commas."""


def configured_roots(jobs_root: Path) -> list[str]:
    named = os.environ.get(ROOTS_VARIABLE, "").split(",")
    return [str(jobs_root), *(root.strip() for root in named if root.strip())]


def check_placement(settings: Settings, roots: list[str]) -> None:
    """Raises Rejected naming the setting whose place is outside the roots."""
    allowed = StorageRoots(roots)
    given = {CHECKPOINT_DIR: settings.checkpoint_dir, SAVEPOINT_DIR: settings.savepoint_dir}
    for key, place in given.items():
        if not place:
            continue
        try:
            allowed.check(place)
        except Rejected as refusal:
            raise Rejected(
                f"The setting {key} cannot be used: {refusal} Whoever runs this installation can"
                f" add a root to {ROOTS_VARIABLE}."
            ) from refusal
