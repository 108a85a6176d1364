"""The output is compared view by view: losses and repetitions never cancel each other out."""

import numpy as np

from pipelines.lab.page_views import ROW, Rows
from pipelines.lab.report import Delivered, Latency, delivered, latency, read_again, views_per_s

APPS = np.array([0, 1, 0, 1, 0])
"""Five views of two applications."""


def test_each_view_once_with_right_totals_is_exact() -> None:
    came = rows((0, 0, 1), (1, 1, 1), (2, 0, 2), (3, 1, 2), (4, 0, 3))

    assert delivered(came, APPS) == Delivered(0, 0, 0, 0)


def test_a_duplicate_view_does_not_hide_a_lost_one() -> None:
    came = rows((0, 0, 1), (1, 1, 1), (2, 0, 2), (2, 0, 3), (2, 0, 4), (4, 0, 5))

    assert delivered(came, APPS) == Delivered(lost=1, doubled=2, counted_short=1, counted_over=2)


def test_the_newest_row_gives_the_total_even_if_it_is_lower() -> None:
    came = rows((0, 0, 1), (2, 0, 2), (1, 1, 1), (3, 1, 2), (4, 0, 1))

    assert delivered(came, APPS) == Delivered(lost=0, doubled=0, counted_short=2, counted_over=0)


def test_an_empty_output_counts_every_view_as_lost() -> None:
    assert delivered(rows(), APPS) == Delivered(5, 0, 5, 0)
    assert latency(rows()) is None
    assert views_per_s(rows(), 0) == 0


def test_latency_is_measured_to_the_first_visibility_of_a_view() -> None:
    came = rows((0, 0, 1), (0, 0, 2), (1, 1, 1))
    came["happened_ms"] = [100, 100, 100]
    came["visible_ms"] = [300, 110, 120]

    assert latency(came) == Latency(p50_ms=15.0, p99_ms=19.9)


def test_the_rate_counts_each_view_once() -> None:
    came = rows((0, 0, 1), (0, 0, 2), (1, 1, 1))
    came["visible_ms"] = [1_100, 1_200, 1_500]

    assert views_per_s(came, 1_000) == 4


def test_repeated_reads_are_counted_by_ranges_of_each_split() -> None:
    first = np.array([[0, 100], [100, 150], [80, 150], [150, 200]])
    second = np.array([[0, 10], [0, 10], [0, 30]])

    assert read_again([(0, first), (1, second)]) == 70 + 20


def rows(*told: tuple[int, int, int]) -> Rows:
    """Returns rows, given the view, the application and its total so far of each."""
    made = np.zeros(len(told), ROW)
    for column, values in zip(("view", "app", "views"), zip(*told, strict=True), strict=False):
        made[column] = values
    return made
