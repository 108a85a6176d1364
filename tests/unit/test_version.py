"""The package, the newest section of the changelog and the tags have the same version."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from ftdash.__main__ import main
from pipelines import __version__

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## (?:(Unreleased)|(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\))$", re.MULTILINE)
TAG = re.compile(r"v\d+\.\d+\.\d+")


def test_the_changelog_the_version_and_the_tags_agree() -> None:
    tags = git("tag", "--list", "v*").split()
    tagged_here = git("tag", "--points-at", "HEAD", "v*").split()

    assert contradictions(__version__, changelog(), tags, tagged_here) == []


RELEASED = "## 0.2.0 (2026-12-01)\n\n## 0.1.0 (2026-06-01)\n"


@pytest.mark.parametrize(
    ("version", "text", "tags", "tagged_here", "contradiction"),
    [
        ("0.3.0.dev0", f"## Unreleased\n\n{RELEASED}", ["v0.1.0", "v0.2.0"], [], None),
        ("0.2.0", RELEASED, ["v0.1.0", "v0.2.0"], ["v0.2.0"], None),
        ("0.2.0", RELEASED, ["v0.1.0"], [], None),
        ("0.3.0", f"## Unreleased\n\n{RELEASED}", [], [], "unreleased"),
        ("0.2.0.dev0", f"## Unreleased\n\n{RELEASED}", [], [], "newer"),
        ("0.3.0", RELEASED, [], [], "newest section"),
        ("0.2.0", RELEASED, ["v0.1.5"], [], "has no section"),
        ("0.2.0", RELEASED, ["v0.1.0"], ["v0.1.0"], "this commit"),
        ("0.2.0", RELEASED, ["v0.2"], [], "is no vX.Y.Z"),
        ("0.2.0", f"## 0.2.0\n\n{RELEASED}", [], [], "heading"),
    ],
)
def test_each_contradiction_is_found(
    version: str, text: str, tags: list[str], tagged_here: list[str], contradiction: str | None
) -> None:
    found = contradictions(version, text, tags, tagged_here)

    if contradiction is None:
        assert found == []
    else:
        assert [each for each in found if contradiction in each] != []


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"] == {"path": "pipelines/__init__.py"}


def test_the_command_prints_its_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ftdash", "--version"])

    main()

    assert capsys.readouterr().out == f"ftdash {__version__}\n"


def contradictions(version: str, text: str, tags: list[str], tagged_here: list[str]) -> list[str]:
    """Returns one sentence for each violation of the rules in `docs/how-to/develop.md`."""
    found = [f"heading {each!r}" for each in headings(text) if not SECTION.fullmatch(each)]
    sections = [match[1] or match[2] for match in SECTION.finditer(text)]
    released = [each for each in sections if each != "Unreleased"]
    mine = Version(version)
    if sections[0] == "Unreleased":
        if not mine.is_devrelease:
            found.append(f"{version} looks released, and the newest section is unreleased")
        if released and mine <= Version(released[0]):
            found.append(f"{version} is not newer than {released[0]}")
    elif sections[0] != version:
        found.append(f"the version is {version}, the newest section {sections[0]}")
    found += [f"tag {tag} is no vX.Y.Z" for tag in tags if not TAG.fullmatch(tag)]
    found += [f"tag {tag} has no section" for tag in tags if tag[1:] not in released]
    found += [f"this commit is tagged {tag}" for tag in tagged_here if tag != f"v{version}"]
    return found


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("## ")]


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text()


def git(*arguments: str) -> str:
    """Returns git's output, which is empty in a copy that is no repository, such as a mutant's."""
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return ran.stdout
