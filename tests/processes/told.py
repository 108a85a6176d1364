"""All that people can read of a run: files, rows, pages and answers; and a search in them."""

import html
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from django.apps import apps
from django.core import serializers
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve, reverse

from ftdash.accounts.models import TokenScope
from ftdash.api.flink.names import job_id
from ftdash.jobs.models import Run
from tests.web.api_callers import bearer
from tests.web.people import admin_user, signed_in

if TYPE_CHECKING:
    from django.http import HttpResponse

Texts = dict[str, bytes]
"""Texts by the place where they can be read."""

LINK = re.compile(r'<a [^>]*href="(/[^"#]*)"')
NO_TEXTS = {"events", "logout", "login"}
"""The event stream, and the pages that log out and in."""

INTERFACES = ("api:", "flink-v1:")
FAILS_AS_FLINK = "/resource-requirements"
"""Flink answers with a server error here, if a job is not scheduled adaptively."""


def holding(texts: Texts, word: str) -> list[str]:
    """Returns the texts that contain the word, plain or encoded, at any position."""
    spellings = spellings_of(word.encode())
    return [where for where, text in texts.items() if any(each in text for each in spellings)]


def spellings_of(word: bytes) -> set[bytes]:
    """Returns the word plain, in hex and in base64: there, letters that depend on it alone."""
    found = {word, word.hex().encode()}
    for before in range(3):
        first, end = -(-8 * before // 6), 8 * (before + len(word)) // 6
        for encode in (b64encode, urlsafe_b64encode):
            found.add(encode(b"\0" * before + word)[first:end])
    return found


def files_in(root: Path) -> Texts:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def all_rows() -> Texts:
    """Returns the rows of every table."""
    return {
        model.__name__: serializers.serialize("json", model._base_manager.all()).encode()
        for model in apps.get_models()
    }


def all_pages() -> Texts:
    """Returns all pages that links reach from the first one; posts no forms: they change data."""
    admin, found, seen = signed_in(admin_user()), Texts(), set[str]()
    waiting = ["/"]
    while waiting:
        address = waiting.pop(0)
        name = str(resolve(address.partition("?")[0]).url_name)
        if name in seen or name in NO_TEXTS:
            continue
        seen.add(name)
        found[address] = text_of(admin, address)
        waiting += [html.unescape(link) for link in LINK.findall(found[address].decode())]
    return found


def all_answers(run: Run, checkpoint_id: int) -> Texts:
    """Returns the answers of our own API and of Flink's, to a program with a token."""
    named: dict[str, object] = {
        "name": run.pipeline.name,
        "run_id": run.run_id,
        "checkpoint_id": checkpoint_id,
        "checkpoint": checkpoint_id,
        "job": job_id(run.run_id),
        "savepoint_key": f"{run.run_id}-{checkpoint_id}",
    }
    client = bearer(TokenScope.READ)
    found = {}
    for name, pattern in named_patterns(get_resolver().url_patterns, ""):
        wanted = set(pattern.pattern.converters)
        if name.startswith(INTERFACES) and wanted <= named.keys():
            address = reverse(name, kwargs={each: named[each] for each in wanted})
            found[address] = text_of(client, address)
    return found


def named_patterns(
    patterns: list[URLPattern | URLResolver], space: str
) -> Iterator[tuple[str, URLPattern]]:
    for each in patterns:
        if isinstance(each, URLResolver):
            inner = f"{space}{each.namespace}:" if each.namespace else space
            yield from named_patterns(each.url_patterns, inner)
        elif each.name:
            yield f"{space}{each.name}", each


def text_of(client: Client, address: str) -> bytes:
    """Returns head and body, whatever the status."""
    answer: HttpResponse = client.get(address)
    assert answer.status_code != 500 or address.endswith(FAILS_AS_FLINK), address
    body = b"" if answer.streaming else answer.content
    return f"{answer.status_code} {dict(answer.items())}\n".encode() + body
