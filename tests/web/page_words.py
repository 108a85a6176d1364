"""The words that a person reads on a page, and the regions of it that refresh."""

import html
import re

from django.test import Client


def text_of(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def words_of(client: Client, address: str) -> str:
    return words_in(text_of(client, address))


def words_in(page: str) -> str:
    """Returns the text without tags, in one line."""
    text = re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))
    return " ".join(html.unescape(text).split())


def regions_in(page: str) -> set[str]:
    return set(re.findall(r'id="(region-[a-z-]+|pulse)"', page))
