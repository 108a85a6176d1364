"""The ASGI entry point: `uvicorn ftdash.asgi:application`."""

import gc
import os

import django
from django.urls import get_resolver

from ftdash.page_handler import PageHandler

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")


def load_pages() -> None:
    """What pages need is loaded before the first request, and set aside from garbage collection.

    It stays until the process ends; a full collection that went through it would hold up the page
    that met it by 200 ms.
    """
    from pipelines.flows.registry import FLOWS, flow

    _ = get_resolver().url_patterns
    for name in FLOWS:
        flow(name)
    gc.collect()
    gc.freeze()


django.setup(set_prefix=False)
application = PageHandler()
load_pages()
