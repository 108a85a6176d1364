"""Asks the customer service where a customer lives."""

from typing import Any

import httpx
from pipelines.stream import AsyncFunction


class Located(AsyncFunction):
    """Adds the country of the customer to an order."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self) -> None:
        # `map_async` limits the time of each request.
        self._client = httpx.AsyncClient(base_url=self._address, timeout=None)

    async def invoke(self, row: dict[str, Any]) -> dict[str, Any]:
        answer = await self._client.get(f"/customers/{row['customer']}")
        answer.raise_for_status()
        return {**row, "country": answer.json()["country"]}

    async def close(self) -> None:
        await self._client.aclose()
