"""The ASGI entry point: `uvicorn ftdash.asgi:application`."""

import gc
import os
from contextlib import suppress

import django
from django.urls import get_resolver

from ftdash.page_handler import PageHandler

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")

YOUNG_OBJECTS_MAX = 10_000
"""With Python's own 700, making a page of 300 kB runs the garbage collector ten times."""


def load_pages() -> None:
    """Loads what pages need before the first request, and exempts it from garbage collection.

    It stays until the process ends; a full collection over it would delay a page by 200 ms. The
    objects of one page stay below the threshold, so no collection runs.
    """
    from pipelines.domain.errors import Rejected
    from pipelines.flows.finding import declared_flows, find_flow

    _ = get_resolver().url_patterns
    for name in declared_flows():
        with suppress(Rejected):  # the page that starts it says why it cannot be imported
            find_flow(name)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX)


django.setup(set_prefix=False)
application = PageHandler()
load_pages()
