"""Generates the events of Nexmark, a kind at a time, by the public definition.

Events have numbers, and the seed and the number determine everything about an event. So any slice
of the events can be generated again, at any parallelism and in any order. Of 50 events one is a new
person, three are new auctions and 46 are bids.

Source: `generator/` and `model/` of nexmark/nexmark on GitHub, with the settings of its second
version: 100,000 events for each second of event time. That generator has no seed, and adds the
number of the first person to each bidder twice. Here it is added once, as in Apache Beam's
generator, so that each bidder is a person.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pipelines.connectors import Draws

from nexmark.columns import AUCTIONS, BIDS, PERSONS, TIME
from nexmark.texts import Numbers, Texts

EPOCH_EVENTS = 50
EVENTS_PER_S = 100_000
BEGIN_MS = 1_436_918_400_000  # 15 July 2015, as in Apache Beam's generator
FIRST_ID, FIRST_CATEGORY = 1_000, 10
CATEGORIES = 5
ACTIVE_PEOPLE, AUCTIONS_IN_FLIGHT = 1_000, 100
LEAD = 10
"""Events may name this many people and auctions that do not exist yet."""

HOT_EVERY = 100
"""One in this many people, and one in this many auctions, is hot."""

HOT_SELLERS, HOT_AUCTIONS, HOT_BIDDERS, HOT_CHANNELS = 4, 2, 4, 2
"""Of this many events, all but one name a hot person, auction or channel."""

CHANNELS = 10_000
LEAST = 1 << 31
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
STATES = pa.array("AZ CA ID OR WA WY".split())
CITIES = pa.array(
    "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne".split(",")
)
FIRST_NAMES = pa.array("Peter Paul Luke John Saul Vicky Kate Julie Sarah Deiter Walter".split())
LAST_NAMES = pa.array("Shultz Abrams Spencer White Bartels Walton Smith Jones Noris".split())
HOT_CHANNEL_NAMES = ["Google", "Facebook", "Baidu", "Apple"]


@dataclass(frozen=True, slots=True)
class Model:
    """Determines the events: `per_s` is how many there are in a second of event time."""

    seed: int = 1
    per_s: int = EVENTS_PER_S

    def times_ms(self, numbers: Numbers) -> Numbers:
        return BEGIN_MS + numbers * 1_000 // self.per_s

    def times(self, numbers: Numbers) -> pa.Array:
        return pa.array(self.times_ms(numbers)).cast(TIME)


@dataclass(frozen=True, slots=True)
class Kind:
    """The events of one kind. `first` and `count` say which ones of each 50 events they are."""

    name: str
    schema: pa.Schema
    first: int
    count: int
    columns: Callable[[Model, Draws], list[pa.Array]]

    def made(self, model: Model, numbers: Numbers) -> pa.RecordBatch:
        """Generates the events with these numbers, which must be of this kind."""
        columns = self.columns(model, Draws(model.seed, 0, numbers))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def numbers(self, positions: Numbers) -> Numbers:
        """Returns the numbers of the events at these positions among the events of this kind."""
        return positions // self.count * EPOCH_EVENTS + self.first + positions % self.count


def persons(model: Model, draws: Draws) -> list[pa.Array]:
    texts = Texts(draws)
    name = _joined([_one_of(draws, "first", FIRST_NAMES), _one_of(draws, "last", LAST_NAMES)], " ")
    email = _joined([texts.up_to("mailbox", 7), "@", texts.up_to("domain", 5), ".com"], "")
    digits = [pc.utf8_lpad(_four_digits(draws, part), 4, "0") for part in range(4)]
    card, city = _joined(digits, " "), _one_of(draws, "city", CITIES)
    state = _one_of(draws, "state", STATES)
    sizes = 8 + sum(_lengths(column) for column in (name, email, card, city, state))
    extra = texts.filling("extra", sizes, PERSON_BYTES)
    ids = _newest_person(draws.offsets) + FIRST_ID
    return [pa.array(ids), name, email, card, city, state, model.times(draws.offsets), extra]


def auctions(model: Model, draws: Draws) -> list[pa.Array]:
    texts, times_ms = Texts(draws), model.times_ms(draws.offsets)
    is_hot = draws.integers("hot seller", 0, HOT_SELLERS) > 0
    hot = _newest_person(draws.offsets) // HOT_EVERY * HOT_EVERY
    seller = np.where(is_hot, hot, _any_person(draws, "seller")) + FIRST_ID
    category = draws.integers("category", 0, CATEGORIES) + FIRST_CATEGORY
    initial = _prices(draws, "initial")
    ahead = AUCTIONS_IN_FLIGHT * EPOCH_EVENTS // AUCTION.count
    horizon_ms = model.times_ms(draws.offsets + ahead) - times_ms
    length_ms = 1 + _below(draws, "length", np.maximum(2 * horizon_ms, 1))
    name, description = texts.up_to("name", 20), texts.up_to("description", 100)
    sizes = 48 + _lengths(name) + _lengths(description)
    return [
        pa.array(_newest_auction(draws.offsets) + FIRST_ID),
        name,
        description,
        pa.array(initial),
        pa.array(initial + _prices(draws, "reserve")),
        pa.array(times_ms).cast(TIME),
        pa.array(times_ms + length_ms).cast(TIME),
        pa.array(seller),
        pa.array(category),
        texts.filling("extra", sizes, AUCTION_BYTES),
    ]


def bids(model: Model, draws: Draws) -> list[pa.Array]:
    newest = _newest_auction(draws.offsets)
    is_hot = draws.integers("hot auction", 0, HOT_AUCTIONS) > 0
    oldest = np.maximum(newest - AUCTIONS_IN_FLIGHT, 0)
    other = oldest + _below(draws, "auction", newest - oldest + 1 + LEAD)
    auction = np.where(is_hot, newest // HOT_EVERY * HOT_EVERY, other) + FIRST_ID
    is_hot = draws.integers("hot bidder", 0, HOT_BIDDERS) > 0
    hot = _newest_person(draws.offsets) // HOT_EVERY * HOT_EVERY + 1
    bidder = np.where(is_hot, hot, _any_person(draws, "bidder")) + FIRST_ID
    is_hot = draws.integers("hot channel", 0, HOT_CHANNELS) > 0
    hot = CHANNELS + draws.integers("channel", 0, len(HOT_CHANNEL_NAMES))
    channel = pa.array(np.where(is_hot, hot, draws.integers("cold channel", 0, CHANNELS)))
    names, urls = _channels(draws.seed)
    sizes = np.full(len(draws.offsets), 32)
    return [
        pa.array(auction),
        pa.array(bidder),
        pa.array(_prices(draws, "price")),
        names.take(channel),
        urls.take(channel),
        model.times(draws.offsets),
        Texts(draws).filling("extra", sizes, BID_BYTES),
    ]


PERSON = Kind("person", PERSONS, 0, 1, persons)
AUCTION = Kind("auction", AUCTIONS, 1, 3, auctions)
BID = Kind("bid", BIDS, 4, 46, bids)
KINDS = (PERSON, AUCTION, BID)


def _newest_person(numbers: Numbers) -> Numbers:
    """Returns the newest person at each of these events, counted from 0."""
    return numbers // EPOCH_EVENTS


def _newest_auction(numbers: Numbers) -> Numbers:
    """Returns the newest auction at each event, counted from 0, or -1 if there is none yet.

    At a new person, that is the last auction of the 50 events before.
    """
    epochs, place = np.divmod(numbers, EPOCH_EVENTS)
    return epochs * AUCTION.count + np.minimum(place - PERSON.count, AUCTION.count - 1)


def _any_person(draws: Draws, name: str) -> Numbers:
    people = _newest_person(draws.offsets) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + _below(draws, name, active + LEAD)


def _below(draws: Draws, name: str, ends: Numbers) -> Numbers:
    """Draws numbers from 0 up to but not including `ends`, which differ by row."""
    return np.floor(draws.fractions(name) * ends).astype(np.int64)


def _prices(draws: Draws, name: str) -> Numbers:
    return np.floor(10.0 ** (draws.fractions(name) * 6.0) * 100.0 + 0.5).astype(np.int64)


def _one_of(draws: Draws, name: str, texts: pa.Array) -> pa.Array:
    return texts.take(pa.array(draws.integers(name, 0, len(texts))))


def _four_digits(draws: Draws, part: int) -> pa.Array:
    return pa.array(draws.integers(f"card/{part}", 0, 10_000)).cast(pa.string())


def _joined(parts: list[pa.Array | str], between: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, between)


def _lengths(column: pa.Array) -> Numbers:
    lengths: npt.NDArray[np.int32] = pc.binary_length(column).to_numpy()
    return lengths.astype(np.int64)


@lru_cache(maxsize=4)
def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Returns the names and addresses of 10,000 channels and of the four hot ones.

    Nine in ten of the 10,000 have their id in the address.
    """
    draws = Draws(seed, 0, np.arange(CHANNELS + len(HOT_CHANNEL_NAMES)))
    texts = Texts(draws)
    parts = [texts.up_to(f"directory/{level}", 5, "_") for level in range(3)]
    ids = [f"&channel_id={_reversed_bits(number)}" for number in range(CHANNELS)]
    has_id = draws.integers("has an id", 0, 10)[:CHANNELS] > 0
    ends = [text if has else "" for text, has in zip(ids, has_id, strict=True)]
    ends += ["" for _ in HOT_CHANNEL_NAMES]
    base = _joined(["https://www.nexmark.com", *parts, "item.htm?query=1"], "/")
    names = [f"channel-{number}" for number in range(CHANNELS)] + HOT_CHANNEL_NAMES
    return pa.array(names), _joined([base, pa.array(ends)], "")


def _reversed_bits(number: int) -> int:
    """Computes Java's `Math.abs(Integer.reverse(number))`; the least integer stays negative."""
    turned = int(f"{number:032b}"[::-1], 2)
    return turned if turned < LEAST else -LEAST if turned == LEAST else 2 * LEAST - turned
