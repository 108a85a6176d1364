"""A reader that looks all the time fails when it sees what no reader may see."""

import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from tests.brokers.onlooker import Onlooker
from tests.contracts.sink_readers import Watch
from tests.polling import wait_until


class ScriptedReader:
    """Shows one list after the other, and then keeps showing the last one."""

    def __init__(self, shown: list[list[int]]) -> None:
        self._shown = list(shown)

    def look(self) -> list[int]:
        return self._shown.pop(0) if len(self._shown) > 1 else self._shown[0]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("shown", "covered", "complaint"),
    [
        ([[], [1, 2, 1]], lambda: 10, r"rows are there twice: \[1, 1, 2\]"),
        ([[1, 2], [1]], lambda: 10, r"rows went away: \{2\}"),
        ([[1], [1, 2]], lambda: 2, r"of 2 rows, \[1, 2\] are visible"),
        ([[1, 1]], None, "rows are there twice"),
    ],
)
def test_a_watch_reports_what_no_reader_may_see(
    shown: list[list[int]], covered: Callable[[], int] | None, complaint: str
) -> None:
    watch = Watch(partial(ScriptedReader, shown), covered)

    with pytest.raises(AssertionError, match=complaint), watch:
        assert not watch.comes_to([1, 2, 3])


@pytest.mark.parametrize("covered", [lambda: 4, None])
def test_a_watch_waits_until_all_rows_are_visible(covered: Callable[[], int] | None) -> None:
    with Watch(partial(ScriptedReader, [[], [1], [2, 1], [1, 2, 3]]), covered) as watch:
        assert watch.comes_to([1, 2, 3])


def test_rows_that_are_shown_early_may_disappear_again() -> None:
    with Watch(partial(ScriptedReader, [[1, 2], [1], [1, 3]]), None) as watch:
        assert watch.comes_to([1, 3])


@pytest.mark.parametrize(
    ("shown", "problems"),
    [
        ([{}, {"a": 1}, {"a": 1, "b": 2}], []),
        ([{"a": 1}, {"a": 2}], ["somebody: a was 1 and is 2"]),
        ([{"a": 1}, {}, {"a": 1}], ["somebody: a was 1 and is None"]),
    ],
)
def test_an_onlooker_waits_for_a_server_and_reports_changed_or_lost_rows(
    monkeypatch: pytest.MonkeyPatch, shown: list[dict[str, int]], problems: list[str]
) -> None:
    monkeypatch.setattr("tests.brokers.onlooker.PAUSE_S", 0.001)
    answers = iter([subprocess.CalledProcessError(1, "psql"), *shown])

    def look() -> dict[str, int]:
        answer = next(answers, shown[-1])
        if isinstance(answer, subprocess.CalledProcessError):
            raise answer
        return answer

    with Onlooker("somebody", look) as onlooker:
        wait_until(lambda: onlooker.looks >= len(shown))

    assert onlooker.problems[:1] == problems
    assert onlooker.seen


def test_an_onlooker_reports_what_it_cannot_read() -> None:
    def look() -> dict[str, int]:
        raise ValueError("half a line")

    with Onlooker("somebody", look) as onlooker:
        wait_until(lambda: bool(onlooker.problems))

    assert onlooker.problems[0] == "somebody: ValueError('half a line')"
