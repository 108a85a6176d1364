"""Half an hour of orders for the example `shop`, in three parts, and the answer in plain Python.

Each part is for one version of the shop, and ends in the middle of a minute. The answer shares no
code with the engine.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ENDS_S = (0, 570, 1_170, 1_800)
"""Where the parts begin and end, in seconds after BEGIN; there is an order each second."""

FRAUD_LIMIT = 100_000
BURSTS_S = {100: "fr-rich", 110: "fr-rich", 1_140: "it-slow", 1_171: "it-slow", 1_500: "it-rich"}
"""Orders of 60,000 cents: two in the first part; two in one minute, in different parts; one."""

HELD_S = {300: "de-held-1", 900: "de-held-2", 1_600: "de-held-3"}
"""Orders of customers about whom the service answers only when the test allows it."""

LATE = [60.5, 61.5, 62.5]
"""Orders of the second minute that arrive in the third part."""

RATES = [("EUR", 0, 1_000), ("USD", 0, 900), ("USD", 600, 800), ("USD", 1_200, 850)]
"""(currency, from which second, thousandths of a euro)"""


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def order(number: int, seconds: float) -> Row:
    second = int(seconds) if seconds == int(seconds) else -1
    countries, is_burst = ("de", "fr", "it", "es"), second in BURSTS_S
    usual = f"{countries[number % 4]}-{number % 12}"
    return {
        "order": number,
        "customer": BURSTS_S.get(second) or HELD_S.get(second) or usual,
        "product": ("tea", "cup", "pot")[number % 3],
        "cents": 60_000 if is_burst else 1_000 + number,
        "currency": "EUR" if is_burst else ("EUR", "USD")[number // 4 % 2],
        "at": at(seconds),
    }


def part(number: int) -> list[Row]:
    """Returns part 1, 2 or 3: its orders in the order of their times, then every seventh once more.

    The third part also has orders of the first one again, and late ones.
    """
    fresh = [order(second, second) for second in range(ENDS_S[number - 1], ENDS_S[number])]
    rows = [*fresh, *fresh[::7]]
    return [*rows, *part(1)[:50], *late()] if number == 3 else rows


def late() -> list[Row]:
    return [order(10_000 + index, seconds) for index, seconds in enumerate(LATE)]


def rates() -> list[Row]:
    return [{"currency": c, "since": at(s), "per_mille": rate} for c, s, rate in RATES]


def fields(row: Row) -> dict[str, str]:
    """Returns an order in the form of a Redis stream entry."""
    return {name: v.isoformat() if name == "at" else str(v) for name, v in row.items()}


def write_lines(path: Path, rows: Iterable[Row]) -> None:
    """Writes the file so that it appears whole."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("".join(json.dumps(row, default=datetime.isoformat) + "\n" for row in rows))
    hidden.rename(path)


def punctual(until: int = 3) -> list[Row]:
    """Returns the orders of the first `until` parts, each once."""
    return [order(second, second) for second in range(ENDS_S[until])]


def euro_cents(row: Row) -> int:
    valid = [rate for c, s, rate in RATES if c == row["currency"] and at(s) <= row["at"]]
    return int(row["cents"]) * valid[-1] // 1_000


def minute_of(row: Row) -> datetime:
    return row["at"].replace(second=0, microsecond=0)


def per_country(orders: Iterable[Row]) -> dict[tuple[str, datetime], list[int]]:
    """{(country, minute): the orders in euro cents}"""
    found = defaultdict(list)
    for row in orders:
        found[row["customer"][:2].upper(), minute_of(row)].append(euro_cents(row))
    return found


def per_product(orders: Iterable[Row]) -> dict[tuple[str, datetime], int]:
    found: dict[tuple[str, datetime], int] = defaultdict(int)
    for row in orders:
        found[row["product"], minute_of(row)] += 1
    return found


def alarms(orders: Iterable[Row]) -> dict[tuple[str, datetime], tuple[int, int]]:
    """{(customer, minute): (orders, euro cents)}"""
    spent = defaultdict(list)
    for row in orders:
        spent[row["customer"], minute_of(row)].append(euro_cents(row))
    return {key: (len(each), sum(each)) for key, each in spent.items() if sum(each) > FRAUD_LIMIT}
