"""The watch on a driver's signs of life: random histories of drivers and looks, then cases."""

import random

import pytest

from pipelines.domain.run import LONG_STEP_MAX_MS, DriverSign
from pipelines.protocol.driver_watch import DriverWatch, Hung, Lives, Silent, Symptom

TIMEOUT_MS = 20_000.0
LOOK_MS = 2_000.0
SIGN_MS = 1_000.0

Found = Lives | Silent | Hung


@pytest.mark.parametrize("seed", range(200))
def test_only_a_driver_that_has_not_moved_for_the_timeout_is_hung(seed: int) -> None:
    """This is true however long driver or supervision stop; a few looks find a hung driver."""
    rng = random.Random(seed)
    watch, sequence, now_ms = DriverWatch(), 1, rng.uniform(0, 1e9)
    moved_ms, looks_since = now_ms, 0

    watch.on_look(1, sign(sequence), now_ms, TIMEOUT_MS)
    for _ in range(300):
        gap_ms = rng.choice([0.0, 50.0, LOOK_MS, LOOK_MS, 4 * LOOK_MS, 1e7])
        now_ms += gap_ms
        if rng.random() < 0.3:
            sequence += rng.randint(1, 5)
            moved_ms, looks_since = now_ms, -1
        looks_since += 1
        found = watch.on_look(1, sign(sequence), now_ms, TIMEOUT_MS)

        watch.validate_state()
        still_ms = now_ms - moved_ms
        if isinstance(found, Hung):
            assert still_ms >= TIMEOUT_MS, seed
            assert looks_since >= 2, seed
        elif looks_since > 0 and gap_ms <= LOOK_MS:
            assert found.for_ms < TIMEOUT_MS if isinstance(found, Silent) else True, seed


@pytest.mark.parametrize("seed", range(50))
def test_a_stopped_driver_is_found_within_a_few_looks_after_the_timeout(seed: int) -> None:
    rng = random.Random(seed)
    watch, began_ms = DriverWatch(), rng.uniform(0, 1e9)
    stops_ms = began_ms + rng.uniform(0, 60_000)
    now_ms, found = began_ms, Lives()

    while not isinstance(found, Hung):
        given = int((min(now_ms, stops_ms) - began_ms) / SIGN_MS)
        found = watch.on_look(1, sign(given), now_ms, TIMEOUT_MS)
        assert now_ms < stops_ms + TIMEOUT_MS + 3 * LOOK_MS, seed
        now_ms += rng.uniform(0.5, 1.0) * LOOK_MS

    assert now_ms > stops_ms + TIMEOUT_MS - SIGN_MS


def test_silence_is_reported_before_a_driver_counts_as_hung() -> None:
    found = looks(DriverWatch(), [sign(1)] * 12)

    kinds = [type(each) for each in found]
    assert kinds == [Lives] * 3 + [Silent] * 7 + [Hung] * 2
    assert found[3] == Silent(Symptom.NO_SIGN, 3 * LOOK_MS, TIMEOUT_MS)


def test_a_machine_that_wakes_from_sleep_replaces_no_driver() -> None:
    watch = DriverWatch()
    looks(watch, [sign(1), sign(2)])

    woken_up = watch.on_look(1, sign(2), 8 * 3_600_000.0, TIMEOUT_MS)
    again = watch.on_look(1, sign(3), 8 * 3_600_000.0 + LOOK_MS, TIMEOUT_MS)

    assert isinstance(woken_up, Silent)
    assert again == Lives()


def test_a_loop_that_stalls_while_its_process_gives_signs_is_hung() -> None:
    found = looks(DriverWatch(), [sign(n, moves=7) for n in range(12)])

    assert found[-1] == Hung(Symptom.STANDS_STILL, 11 * LOOK_MS, TIMEOUT_MS)


def test_a_long_step_may_take_minutes_from_one_move_to_the_next() -> None:
    watch = DriverWatch()
    count = int(LONG_STEP_MAX_MS / LOOK_MS)

    found = looks(watch, [sign(n, moves=7, is_long_step=True) for n in range(count)])

    assert not [each for each in found if isinstance(each, Hung)]
    assert found[-1] == Silent(Symptom.STANDS_STILL, (count - 1) * LOOK_MS, LONG_STEP_MAX_MS)


def test_a_driver_stopped_in_a_long_step_gets_no_extra_time() -> None:
    found = looks(DriverWatch(), [sign(1, is_long_step=True)] * 11)

    assert found[-1] == Hung(Symptom.NO_SIGN, 10 * LOOK_MS, TIMEOUT_MS)


def test_the_end_of_a_long_step_counts_as_a_move() -> None:
    watch = DriverWatch()
    looks(watch, [sign(n, moves=7, is_long_step=True) for n in range(100)])

    ended = watch.on_look(1, sign(100, moves=7), 100 * LOOK_MS, TIMEOUT_MS)

    assert ended == Lives()


def test_a_successor_gets_the_full_timeout_and_old_signs_do_not_count() -> None:
    watch = DriverWatch()
    looks(watch, [sign(1)] * 11)
    now_ms = 11 * LOOK_MS

    found = [
        watch.on_look(2, sign(100 + n), now_ms + n * LOOK_MS, TIMEOUT_MS)  # still of epoch 1
        for n in range(11)
    ]

    assert found[0] == Lives()
    assert not isinstance(found[9], Hung)
    assert found[10] == Hung(Symptom.NO_SIGN, 10 * LOOK_MS, TIMEOUT_MS)


def test_a_stall_of_half_the_timeout_replaces_no_driver() -> None:
    """A disk stalls for 10 s, and the default timeout is 20 s."""
    found = looks(DriverWatch(), [sign(1)] * 6 + [sign(2), sign(3)])

    assert not [each for each in found if isinstance(each, Hung)]
    assert found[-1] == Lives()


def sign(sequence: int, *, moves: int | None = None, is_long_step: bool = False) -> DriverSign:
    of_loop = sequence if moves is None else moves
    return DriverSign(epoch=1, sequence=sequence, moves=of_loop, is_long_step=is_long_step)


def looks(watch: DriverWatch, signs: list[DriverSign]) -> list[Found]:
    """Looks at one sign after the other, once per round of supervision. Returns the findings."""
    return [watch.on_look(1, each, n * LOOK_MS, TIMEOUT_MS) for n, each in enumerate(signs)]
