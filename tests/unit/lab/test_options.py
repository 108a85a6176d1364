"""A lab's options: their words give all of them, and an impossible value is refused by name."""

from argparse import ArgumentParser
from itertools import pairwise

import msgspec
import pytest

from pipelines.domain.errors import Rejected
from pipelines.lab.options import MODE_NAMES, LabOptions, add_options, options_of
from pipelines.lab.page_views import kill_places


def test_the_command_line_words_of_a_lab_restore_its_options() -> None:
    chosen = LabOptions(
        seed=7,
        records=5_000,
        parallelism=3,
        rate=800,
        interval_ms=50,
        faults=1,
        modes=("acked", "exactly-once"),
        has_cost_run=False,
    )

    assert options_of(parser().parse_args(chosen.words)) == chosen


def test_without_words_the_default_options_apply() -> None:
    assert options_of(parser().parse_args([])) == LabOptions()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parallelism": 0}, "--parallelism is 0; give a number from 1 to 16."),
        ({"interval_ms": 5}, "--interval-ms is 5"),
        ({"modes": ("exactly-twice",)}, "--modes has exactly-twice; choose of at-most-once,"),
        ({"modes": ()}, "--modes has nothing"),
        ({"records": 1_500}, "--records is 1500, too few for 2 faults; give at least 2000"),
    ],
)
def test_an_impossible_lab_is_refused_naming_its_option(
    change: dict[str, object], told: str
) -> None:
    with pytest.raises(Rejected, match=told.replace(".", r"\.")):
        msgspec.structs.replace(LabOptions(), **change).check()


def test_modes_are_always_compared_in_the_same_order() -> None:
    chosen = LabOptions(modes=("acked", "at-most-once")).chosen

    assert [mode.name for mode in chosen] == ["at-most-once", "acked"]
    assert [mode.name for mode in LabOptions().chosen] == list(MODE_NAMES)


@pytest.mark.parametrize("seed", range(50))
def test_faults_are_spread_out_and_depend_only_on_the_seed(seed: int) -> None:
    places = kill_places(seed, 100_000, 4)

    assert places == kill_places(seed, 100_000, 4)
    assert len(places) == 4
    assert all(later - earlier >= 15_000 for earlier, later in pairwise(places))
    assert places[0] >= 10_000
    assert places[-1] <= 95_000


def test_each_seed_places_the_kills_differently() -> None:
    assert len({kill_places(seed, 100_000, 2) for seed in range(20)}) == 20


def parser() -> ArgumentParser:
    made = ArgumentParser()
    add_options(made)
    return made
