"""Orders and rates of one day."""

from datetime import UTC, datetime, timedelta
from typing import Any

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
CUSTOMERS = ("de-anna", "fr-ben", "de-carl", "it-dora")
PRODUCTS = ("tea", "cup", "pot")
CURRENCIES = ("EUR", "USD")


def after(**time: float) -> datetime:
    return BEGIN + timedelta(**time)


RATES: list[Row] = [
    {"currency": "EUR", "per_mille": 1_000, "since": after(hours=-1)},
    {"currency": "USD", "per_mille": 900, "since": after(hours=-1)},
    {"currency": "USD", "per_mille": 800, "since": after(minutes=2)},
]


def order(number: int) -> Row:
    """Makes an order; there is one each second."""
    return {
        "order": number,
        "customer": CUSTOMERS[number % 4],
        "product": PRODUCTS[number % 3],
        "cents": 1_000 + number,
        "currency": CURRENCIES[number // 4 % 2],
        "at": after(seconds=number),
    }
