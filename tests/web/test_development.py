"""The parts of `ftdash dev` that need no process: which point is next, and which files count."""

import os
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from ftdash.command_line.development import AuthorFiles, next_start
from pipelines.domain.errors import Rejected
from pipelines.domain.status import JobStatus
from pipelines.local.view import REFUSED, CheckpointSeen, View, authors_part

OURS = Path(__file__).parents[2] / "pipelines" / "operators" / "stateless.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "own_package"
    (package / "parts").mkdir(parents=True)
    (package / "flow.py").write_text("first")
    return package


def test_the_next_process_starts_from_the_newest_point(tmp_path: Path) -> None:
    there = seen(str(tmp_path))

    assert next_start(View(status=JobStatus.FINISHED, savepoint="s", checkpoint=there), "b") == "s"
    assert next_start(View(status=JobStatus.FAILED, checkpoint=there), "b") == str(tmp_path)
    assert next_start(View(status=JobStatus.RUNNING, checkpoint=there), "b") == str(tmp_path)


def test_the_previous_start_point_stays_when_there_is_no_newer_point(tmp_path: Path) -> None:
    gone = seen(str(tmp_path / "gone"))

    assert next_start(View(status=REFUSED), "before") == "before"
    assert next_start(View(), "before") == "before"
    assert next_start(View(status=JobStatus.FAILED, checkpoint=gone), "before") == "before"


def test_input_that_has_ended_is_read_again_from_the_beginning(tmp_path: Path) -> None:
    assert next_start(View(status=JobStatus.FINISHED), "before") is None


def test_a_change_counts_once_it_has_settled(package: Path) -> None:
    files = AuthorFiles("own_package.flow:NAME", package.parent)
    assert not files.have_changed()

    changed(package / "flow.py", "second", at_s=2_000_000_000)

    assert not files.have_changed()  # it may still be changing
    assert files.have_changed()
    assert not files.have_changed()


@pytest.mark.parametrize("change", ["added", "removed"])
def test_an_added_or_removed_file_is_a_change(package: Path, change: str) -> None:
    files = AuthorFiles("own_package.flow:NAME", package.parent)

    if change == "added":
        (package / "parts" / "new.py").touch()
    else:
        (package / "flow.py").unlink()

    assert [files.have_changed(), files.have_changed()] == [False, True]


def test_files_other_than_the_packages_code_are_ignored(package: Path) -> None:
    files = AuthorFiles("own_package.flow:NAME", package.parent)

    (package / "rows.json").touch()
    (package.parent / "elsewhere.py").touch()

    assert not any(files.have_changed() for _ in range(3))


def test_a_missing_module_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"There is no module nowhere; start the command in"):
        AuthorFiles("nowhere.flow:NAME", tmp_path)
    with pytest.raises(CommandError, match=r"There is no module nowhere"):
        call_command("dev", "nowhere.flow:NAME")


def test_a_traceback_keeps_the_lines_of_the_author() -> None:
    own = '  File "/home/me/shop/flow.py", line 4, in double\n    return row["no"]\n    ~~~^^^^\n'
    ours = f'  File "{OURS}", line 134, in on_batch\n    self._function(row)\n'
    head, error = "Traceback (most recent call last):\n", "KeyError: 'no'\n"
    later = "\nThe above exception was the direct cause of the following exception:\n\n" + head

    assert authors_part(head + ours + own + error + later + ours) == (head + own + error).rstrip()
    assert authors_part(head + ours + error) == (head + ours + error).rstrip()
    assert authors_part("no traceback") == "no traceback"


def changed(path: Path, text: str, *, at_s: float) -> None:
    path.write_text(text)
    os.utime(path, (at_s, at_s))


def seen(path: str) -> CheckpointSeen:
    return CheckpointSeen(id=1, path=path, end_to_end_ms=1.0, state_bytes=1)
