"""Numbers, sizes, durations and moments in the form that people read."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from ftdash import formats
from ftdash.ui.templatetags.formats import breakable


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.44, "0.4 ms"),
        (9.96, "10 ms"),
        (84.2, "84 ms"),
        (1_250, "1.25 s"),
        (12_340, "12.3 s"),
        (125_000, "2 min 05 s"),
        (11_520_000, "3 h 12 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_durations_are_formatted_with_their_unit(milliseconds: float | None, written: str) -> None:
    assert formats.duration(milliseconds) == written


@pytest.mark.parametrize(
    ("byte_count", "written"),
    [
        (None, "–"),
        (0, "0 B"),
        (812, "812 B"),
        (1_240, "1.24 kB"),
        (626_000, "626 kB"),
        (999_900, "1.00 MB"),
        (10_000_000, "10.0 MB"),
        (3_200_000_000, "3.20 GB"),
    ],
)
def test_sizes_are_formatted_with_their_unit(byte_count: int | None, written: str) -> None:
    assert formats.size(byte_count) == written


@pytest.mark.parametrize(
    ("per_second", "written"),
    [
        (None, "–"),
        (0.0, "0/s"),
        (950.0, "950/s"),
        (999.9, "1.00 k/s"),
        (12_400.0, "12.4 k/s"),
        (3_210_000.0, "3.21 M/s"),
    ],
)
def test_rates_are_formatted_with_their_unit(per_second: float | None, written: str) -> None:
    assert formats.rate(per_second) == written


def test_unknown_is_never_written_as_zero() -> None:
    for write in (formats.duration, formats.age, formats.size, formats.count, formats.rate):
        assert write(None) == formats.UNKNOWN
        assert write(0) != formats.UNKNOWN


def test_times_of_any_zone_are_written_in_utc() -> None:
    there = datetime(2026, 11, 21, 16, 2, 11, tzinfo=timezone(timedelta(hours=2)))

    assert formats.utc(there) == "2026-11-21 14:02:11 UTC"
    assert formats.utc_clock(there.astimezone(UTC)) == "14:02:11 UTC"


@pytest.mark.parametrize(
    ("number", "written"), [(0, "0 records"), (1, "1 record"), (2_400, "2,400 records")]
)
def test_counted_things_agree_with_their_number(number: int, written: str) -> None:
    assert formats.plural(number, "record") == written


@pytest.mark.parametrize(
    ("setting", "written"),
    [
        ("state.backend.type", "state.<wbr>backend.<wbr>type"),
        ("RETAIN_ON_CANCELLATION", "RETAIN_<wbr>ON_<wbr>CANCELLATION"),
        ("not set", "not set"),
        ("Ends. See <dir>.", "Ends. See &lt;dir&gt;."),
    ],
)
def test_a_setting_may_break_between_its_words_only(setting: str, written: str) -> None:
    assert breakable(setting) == written
