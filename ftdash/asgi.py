"""The ASGI entry point: `uvicorn ftdash.asgi:application`."""

import gc
import os

from django.core.asgi import get_asgi_application
from django.urls import get_resolver

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


application = get_asgi_application()
load_pages()
