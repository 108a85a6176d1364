"""Fetches streamed answers as an operator."""

from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient

from tests.web.people import operator_user


def fetch(address: str) -> tuple[int, Any, list[bytes]]:
    """Returns status, headers, and the body in the parts that the server sends."""
    user = User.objects.filter(username="olaf").first() or operator_user()
    return async_to_sync(_fetch)(address, user)


async def _fetch(address: str, user: User) -> tuple[int, Any, list[bytes]]:
    client = AsyncClient()
    await client.aforce_login(user)
    answer = await client.get(address)
    if not answer.streaming:
        return answer.status_code, answer.headers, [answer.content]
    return answer.status_code, answer.headers, [part async for part in answer.streaming_content]
