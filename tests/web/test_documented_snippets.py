"""Every snippet of the documentation runs as written, or its page says why it cannot.

The files `given_PAGE.py` in `tests/snippets` prepare what snippets take for granted. The function
`check` of such a file, if there is one, gets the names that the snippets in Python have made;
`check_files` gets the directory in which the shell snippets have run.
"""

import os
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.documented_snippets import (
    PAGES,
    PYTHON,
    ROOT,
    SHELL,
    Snippet,
    expect_python_runs,
    expect_shell_runs,
    snippets_of,
)
from tests.excused_snippets import unfounded

GIVEN = ROOT / "tests" / "snippets"
SNIPPETS = {page: snippets_of(page) for page in PAGES}
WITH_EXTRAS = re.compile(r"ftdash\[[^\]]*\]")


def pages_with(language: str) -> list[Any]:
    """Returns the pages that have a runnable snippet in that language."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page, snippets in SNIPPETS.items()
        if any(each.runs and each.language == language for each in snippets)
    ]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory. Modules imported there are forgotten afterwards."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", pages_with(PYTHON))
def test_the_python_of_a_page_runs(page: Path, place: Path) -> None:
    names = given_for(page)
    check = names.pop("check", None)
    names["__name__"] = "documented"

    for snippet in running(page, PYTHON):
        expect_python_runs(snippet, names)

    if check is not None:
        check(names)


@pytest.mark.parametrize("page", pages_with(SHELL))
def test_the_commands_of_a_page_run(page: Path, place: Path) -> None:
    programs = place / ".programs"
    programs.mkdir()
    command = programs / "ftdash"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ftdash "$@"\n')
    command.chmod(0o755)
    environment = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{place}",
        "FTDASH_HOME": str(place / "home"),
        "HOME": os.environ.get("HOME", str(place)),
    }

    expect_shell_runs(running(page, SHELL), place, environment)

    if check_files := given_for(page).get("check_files"):
        check_files(place)


def test_every_snippet_runs_or_its_page_says_why_not() -> None:
    unclear = [
        each.name
        for snippets in SNIPPETS.values()
        for each in snippets
        if not each.is_marked and each.language == SHELL
    ]

    assert unclear == []
    assert sum(each.runs for snippets in SNIPPETS.values() for each in snippets) >= 15


def test_a_test_that_an_excuse_names_exists_and_runs_the_commands_of_the_snippet() -> None:
    every = [each for snippets in SNIPPETS.values() for each in snippets]

    assert {each.name: problems for each in every if (problems := unfounded(each))} == {}


@pytest.mark.parametrize(
    ("excuse", "text", "problems"),
    [
        ("tests/web/test_backups.py runs it", "ftdash backup now.tar.gz", []),
        ("tests/web/test_backups.py runs it", "ftdash restore-it", ["restore_it"]),
        ("tests/web/test_backups.py runs it", ".venv/bin/python manage.py demo", ["demo"]),
        ("tests/web/test_api_tokens.py runs it", "manage.py api_token create ci", []),
        ("tests/web/test_api_tokens.py runs it", "manage.py watch remove q", ["remove", "watch"]),
        ("tests/web/test_of_nothing.py runs it", "ls", ["tests/web/test_of_nothing.py"]),
        ("test_backups runs it", "ls", ["test_backups"]),
        ("tests run it", "ls", ["tests"]),
        ("starts Spark", "ftdash lab", []),
    ],
)
def test_an_excuse_that_the_named_test_does_not_bear_out_is_found(
    excuse: str, text: str, problems: list[str]
) -> None:
    snippet = Snippet(ROOT / "README.md", 1, SHELL, text, excuse, True)

    assert sorted(each.split()[0] for each in unfounded(snippet)) == problems


def test_every_extra_that_the_documentation_installs_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = {page: page.read_text() for page in PAGES}
    installed = [
        (page.name, extra)
        for page, text in texts.items()
        for found in WITH_EXTRAS.findall(text)
        for extra in Requirement(found).extras
    ]

    assert ("operate.md", "telemetry") in installed
    assert [each for each in installed if each[1] not in project["optional-dependencies"]] == []


def test_every_prepared_file_for_snippets_belongs_to_a_page() -> None:
    files = {given_file(page) for page in PAGES}

    assert [file.name for file in GIVEN.glob("*.py") if file.name not in files] == []


def test_a_snippet_that_fails_is_named_by_its_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nfirst = 1\nraise KeyError(first)\n```\n")
    (snippet,) = snippets_of(page)

    with pytest.raises(KeyError) as raised:
        expect_python_runs(snippet, {})

    assert (str(raised.traceback[-1].path), raised.traceback[-1].lineno + 1) == (str(page), 5)


def test_a_comment_says_why_a_snippet_is_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    fence = "```python\nraise KeyError\n```\n"
    page.write_text(f"<!-- not run: needs a broker -->\n{fence}\n{fence}\n<!-- run -->\n{fence}")

    snippets = snippets_of(page)

    assert [(each.excuse, each.runs) for each in snippets] == [
        ("needs a broker", False),
        ("", True),
        ("", True),
    ]


def running(page: Path, language: str) -> list[Snippet]:
    return [each for each in SNIPPETS[page] if each.runs and each.language == language]


def given_for(page: Path) -> dict[str, Any]:
    given = GIVEN / given_file(page)
    return runpy.run_path(str(given)) if given.exists() else {}


def given_file(page: Path) -> str:
    return f"given_{page.stem.replace('-', '_')}.py"
