"""The ASGI entry point: `uvicorn ftdash.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")

application = get_asgi_application()
