"""Finds the release before this version in git's history, because a checkout may have no tags."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[1]
PLACE = "pipelines/__init__.py"
STATED = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


class ReleaseMissing(Exception):
    """The history has no earlier release; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """`commit` is the commit that set the version."""

    version: str
    commit: str


def previous_release(repository: Path = ROOT) -> Release:
    """Returns the newest release that is older than the version of the checked-out code.

    Raises ReleaseMissing.
    """
    mine = stated_version((repository / PLACE).read_text())
    for commit in git(repository, "log", "--format=%H", "-G^__version__", "--", PLACE).split():
        version = stated_version(git(repository, "show", f"{commit}:{PLACE}"))
        if version < mine and not version.is_devrelease:
            return Release(str(version), commit)
    if git(repository, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise ReleaseMissing(
            f"{repository} is a shallow clone, which lacks the release before {mine}. Run `git"
            " fetch --unshallow` in it."
        )
    raise ReleaseMissing(
        f"The history of {repository} has no release before {mine}: no commit sets __version__ in"
        f" {PLACE} to an older version without `.dev`. Check out the whole history."
    )


def stated_version(text: str) -> Version:
    [version] = STATED.findall(text)
    return Version(version)


def git(repository: Path, *words: str) -> str:
    """Raises ReleaseMissing if git fails, for instance because this is no repository."""
    ran = subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True)
    if ran.returncode:
        raise ReleaseMissing(f"git {words[0]} failed in {repository}: {ran.stderr.strip()}")
    return ran.stdout
