"""The ASGI entry point: `uvicorn ftdash.asgi:application`."""

import gc
import os

import django
from django.urls import get_resolver

from ftdash.page_handler import PageHandler

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")

YOUNG_OBJECTS_MAX = 10_000
"""Python's own 700 has a page of 300 kB searched for garbage ten times while it is made."""


def load_pages() -> None:
    """What pages need is loaded before the first request, and set aside from garbage collection.

    It stays until the process ends; a full collection that went through it would hold up the page
    that met it by 200 ms. What one page makes is less than the threshold, and needs no search.
    """
    from pipelines.flows.registry import FLOWS, flow

    _ = get_resolver().url_patterns
    for name in FLOWS:
        flow(name)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


django.setup(set_prefix=False)
application = PageHandler()
load_pages()
