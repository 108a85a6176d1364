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
from tests.previous_release import Release, ReleaseMissing, previous_release

ROOT = Path(__file__).parents[2]
SECTION = re.compile(r"^## (?:(Unreleased)|(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\))$", re.MULTILINE)
TAG = re.compile(r"v\d+\.\d+\.\d+")


def test_the_changelog_the_version_and_the_tags_agree() -> None:
    tags = git("tag", "--list", "v*").split()
    tagged_here = git("tag", "--points-at", "HEAD", "v*").split()

    assert contradictions(__version__, changelog(), tags, tagged_here) == []


def test_the_history_the_changelog_and_the_tags_have_the_same_previous_release() -> None:
    release = previous_release()
    sections = [match[2] for match in SECTION.finditer(changelog()) if match[2]]

    assert release.version == next(each for each in sections if each != __version__)
    tag = f"v{release.version}"
    if tag in git("tag", "--list", "v*").split():
        assert git("rev-list", "-1", tag).strip() == release.commit


@pytest.mark.slow
def test_the_previous_release_is_found_without_tags_and_a_history_without_it_is_named(
    tmp_path: Path,
) -> None:
    repository, shallow = tmp_path / "repository", tmp_path / "shallow"
    write_version(repository, "0.1.0.dev0")
    with pytest.raises(ReleaseMissing, match=r"git log failed in .*: not a git repository"):
        previous_release(repository)
    run_git(repository, "init", "--quiet")
    commit_version(repository, "0.1.0.dev0")
    with pytest.raises(
        ReleaseMissing, match=r"has no release before 0\.1\.0\.dev0: no commit sets"
    ):
        previous_release(repository)

    first, _, second, _ = [
        commit_version(repository, each) for each in ("0.1.0", "0.2.0.dev0", "0.2.0", "0.3.0.dev0")
    ]
    assert previous_release(repository) == Release("0.2.0", second)
    run_git(repository, "checkout", "--quiet", second)
    assert previous_release(repository) == Release("0.1.0", first)

    run_git(tmp_path, "clone", "--quiet", "--depth=1", repository.as_uri(), "shallow")
    with pytest.raises(ReleaseMissing, match=r"is a shallow clone, .* Run `git fetch --unshallow`"):
        previous_release(shallow)


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


def commit_version(repository: Path, version: str) -> str:
    """Returns the commit."""
    write_version(repository, version)
    run_git(repository, "add", ".")
    run_git(repository, "commit", "--quiet", f"--message={version}")
    return run_git(repository, "rev-parse", "HEAD").strip()


def write_version(repository: Path, version: str) -> None:
    (repository / "pipelines").mkdir(parents=True, exist_ok=True)
    (repository / "pipelines" / "__init__.py").write_text(f'__version__ = "{version}"\n')


def run_git(directory: Path, *words: str) -> str:
    ada = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(
        ["git", *ada, *words], cwd=directory, check=True, capture_output=True, text=True
    ).stdout


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("## ")]


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text()


def git(*arguments: str) -> str:
    """Returns git's output, which is empty in a copy that is no repository, such as a mutant's."""
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return ran.stdout
