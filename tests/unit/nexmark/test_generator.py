"""Nexmark events: proportions, ids, hot ratios and sizes as defined; slices can be repeated."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from nexmark.columns import AUCTIONS, BIDS, PERSONS
from nexmark.generator import AUCTION, BEGIN_MS, BID, KINDS, PERSON, Kind, Model
from nexmark.sources import generated
from nexmark.writing import with_integer_times, write_csv, write_parquet

from pipelines.stream import Rejected

MODEL = Model(seed=11)
FIFTIES = 2_000
EVENTS = 50 * FIFTIES
TOLERANCE = 0.01
"""About two standard deviations, for shares of at least 6,000 draws."""


def made(kind: Kind, model: Model = MODEL) -> pa.RecordBatch:
    return kind.made(model, numbers_of(kind))


def numbers_of(kind: Kind) -> np.ndarray:
    return kind.numbers(np.arange(FIFTIES * kind.count))


def share(holds: pa.Array | np.ndarray) -> float:
    return float(np.mean(np.asarray(holds)))


def column(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return batch.column(name).to_numpy(zero_copy_only=False)


def test_fifty_events_hold_one_person_three_auctions_and_46_bids() -> None:
    numbers = np.concatenate([numbers_of(kind) for kind in KINDS])

    assert sorted(numbers) == list(range(EVENTS))
    assert {kind.name: set(numbers_of(kind) % 50) for kind in KINDS} == {
        "person": {0},
        "auction": {1, 2, 3},
        "bid": set(range(4, 50)),
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_any_slice_can_be_generated_again(kind: Kind) -> None:
    whole = made(kind)

    chosen = np.arange(17, whole.num_rows, 97)
    again = kind.made(MODEL, kind.numbers(chosen))

    assert again.equals(whole.take(pa.array(chosen)))
    assert not made(kind, Model(seed=12)).equals(whole)


@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_source_gives_the_same_events_at_any_number_of_splits(kind: Kind, splits: int) -> None:
    names = kind.schema.names
    source = generated(kind, MODEL, events=EVENTS, splits=splits, columns=names)

    read = [pa.Table.from_batches(source.read(split, 0)) for split in range(splits)]

    assert len({table.num_rows for table in read}) == 1
    assert source.split_id(splits) is None
    everything = pa.concat_tables(read)
    expected = pa.Table.from_batches([made(kind)])
    order = [(name, "ascending") for name in names]
    assert everything.sort_by(order).equals(expected.sort_by(order))
    for table in read:
        times = table.column("date_time").cast(pa.int64()).to_numpy()
        assert (np.diff(times) >= 0).all()


def test_events_that_do_not_divide_evenly_among_the_splits_are_refused() -> None:
    with pytest.raises(Rejected, match="give a multiple of 400"):
        generated(BID, MODEL, events=20_050, splits=8, columns=["price"])


def test_ids_count_up_from_1000() -> None:
    assert column(made(PERSON), "id").tolist() == list(range(1_000, 1_000 + FIFTIES))
    assert column(made(AUCTION), "id").tolist() == list(range(1_000, 1_000 + 3 * FIFTIES))


@pytest.mark.parametrize(("per_s", "number", "ms"), [(100_000, 12_345, 123), (500, 1_001, 2_002)])
def test_event_time_follows_the_rate(per_s: int, number: int, ms: int) -> None:
    assert Model(1, per_s).times_ms(np.array([0, number])).tolist() == [BEGIN_MS, BEGIN_MS + ms]


def newest_auction(number: int) -> int:
    """Returns this event's auction or the last one before it, counted from 0, by the definition."""
    fifty, place = divmod(number, 50)
    if place < 1:
        return 3 * (fifty - 1) + 2
    return 3 * fifty + min(place - 1, 2)


def newest_person(number: int) -> int:
    return number // 50


def test_half_the_bids_go_to_the_hot_auction_and_half_to_auctions_in_flight() -> None:
    bids = made(BID)
    newest = np.array([newest_auction(int(number)) for number in numbers_of(BID)])
    auction = column(bids, "auction") - 1_000

    is_hot = auction == newest // 100 * 100

    assert share(is_hot) == pytest.approx(1 / 2 + 1 / 2 / 111, abs=TOLERANCE)
    others, its_newest = auction[~is_hot], newest[~is_hot]
    assert (others >= np.maximum(its_newest - 100, 0)).all()
    assert (others <= its_newest + 10).all()
    assert set(range(-100, 11)) == set((others - its_newest)[its_newest > 100])


@pytest.mark.parametrize(
    ("kind", "name", "hot_one", "ids"), [(BID, "bidder", 1, 1_000), (AUCTION, "seller", 0, 1_000)]
)
def test_three_in_four_events_name_the_hot_person_and_others_an_active_one(
    kind: Kind, name: str, hot_one: int, ids: int
) -> None:
    newest = np.array([newest_person(int(number)) for number in numbers_of(kind)])
    person = column(made(kind), name) - ids

    is_hot = person == newest // 100 * 100 + hot_one

    assert share(is_hot[newest > 200]) == pytest.approx(3 / 4, abs=2 * TOLERANCE)
    others, its_newest = person[~is_hot], newest[~is_hot]
    assert (others <= its_newest + 10).all()
    assert (others > its_newest - 1_000).all()
    assert (others[its_newest > 1_500] <= its_newest[its_newest > 1_500] - 900).any()


@pytest.mark.parametrize(
    ("kind", "texts", "fixed_bytes", "average_bytes"),
    [
        (PERSON, ("name", "email_address", "credit_card", "city", "state", "extra"), 8, 200),
        (AUCTION, ("item_name", "description", "extra"), 48, 500),
        (BID, ("extra",), 32, 100),
    ],
    ids=lambda value: value.name if isinstance(value, Kind) else None,
)
def test_events_have_the_definitions_average_sizes(
    kind: Kind, texts: tuple[str, ...], fixed_bytes: int, average_bytes: int
) -> None:
    batch = made(kind)

    sizes = sum(pc.binary_length(batch[name]).to_numpy() for name in texts) + fixed_bytes

    assert np.mean(sizes) == pytest.approx(average_bytes, rel=0.01)
    assert np.ptp(sizes) > 0.2 * (average_bytes - fixed_bytes)


def test_prices_are_log_uniform() -> None:
    prices = column(made(BID), "price")

    assert 100 <= prices.min() < 102
    assert 99_000_000 < prices.max() <= 100_000_000
    logarithms = np.log10(prices / 100)
    for sixth in range(1, 6):
        assert share(logarithms < sixth) == pytest.approx(sixth / 6, abs=TOLERANCE)


def turned(number: int) -> int:
    """Computes Java's `Math.abs(Integer.reverse(number))`, one bit at a time."""
    value = sum(1 << (31 - bit) for bit in range(32) if number >> bit & 1)
    signed = value - (1 << 32) if value >> 31 else value
    return signed if signed == -(1 << 31) else abs(signed)


def test_half_of_the_channels_are_hot_and_nine_tenths_of_the_others_have_an_id() -> None:
    bids = made(BID)
    names = bids["channel"].to_pylist()

    hot = {"Google", "Facebook", "Baidu", "Apple"}
    assert share(np.array([name in hot for name in names])) == pytest.approx(0.5, abs=TOLERANCE)
    addresses = dict(zip(names, bids["url"].to_pylist(), strict=True))
    cold = {name: url for name, url in addresses.items() if name not in hot}
    has_id = np.array(["&channel_id=" in url for url in cold.values()])
    assert share(has_id) == pytest.approx(0.9, abs=TOLERANCE)
    ids = {number: str(turned(number)) for number in range(10_000)}
    for name, url in cold.items():
        number = int(name.removeprefix("channel-"))
        assert url.partition("&channel_id=")[2] in ("", ids[number])
    assert not any("channel_id" in addresses[name] for name in hot)
    assert all(len(url.split("/")) == 7 for url in addresses.values())


def test_on_average_an_auction_lasts_until_a_hundred_more_have_begun() -> None:
    auctions = made(AUCTION, Model(seed=11, per_s=500))

    lasts_ms = pc.subtract(auctions["expires"].cast("int64"), auctions["date_time"].cast("int64"))

    horizon_ms = 100 * 50 / 3 / 500 * 1_000
    assert np.mean(lasts_ms) == pytest.approx(horizon_ms, rel=0.03)
    assert 1 <= pc.min(lasts_ms).as_py() <= pc.max(lasts_ms).as_py() <= 2 * horizon_ms
    assert pc.all(pc.greater(auctions["reserve"], auctions["initial_bid"])).as_py()
    assert set(auctions["category"].to_pylist()) == {10, 11, 12, 13, 14}


def read_parquet(directory: Path, kind: Kind) -> pa.Table:
    return pq.read_table(directory / kind.name)


def read_csv(directory: Path, kind: Kind) -> pa.Table:
    schema = with_integer_times(kind.schema)
    options = csv.ConvertOptions(column_types=schema, strings_can_be_null=False)
    names = csv.ReadOptions(column_names=schema.names)
    paths = sorted((directory / kind.name).glob("*.csv"))
    tables = [csv.read_csv(path, read_options=names, convert_options=options) for path in paths]
    return pa.concat_tables(tables).cast(kind.schema)


@pytest.mark.parametrize(
    ("write", "read"),
    [(write_parquet, read_parquet), (write_csv, read_csv)],
    ids=["parquet", "csv"],
)
def test_files_hold_the_same_events_as_the_generator(
    write: Callable[..., None], read: Callable[[Path, Kind], pa.Table], tmp_path: Path
) -> None:
    write(tmp_path, MODEL, events=10_000, files=4)

    for kind, schema in zip(KINDS, (PERSONS, AUCTIONS, BIDS), strict=True):
        expected = kind.made(MODEL, kind.numbers(np.arange(200 * kind.count)))
        order = [("date_time", "ascending"), ("extra", "ascending")]
        found = read(tmp_path, kind)
        assert found.schema == schema
        assert found.sort_by(order).equals(pa.Table.from_batches([expected]).sort_by(order))
        assert len(list((tmp_path / kind.name).iterdir())) == 4
