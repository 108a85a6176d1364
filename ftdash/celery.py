"""The Celery application. It serves the control plane only: a stream never runs inside a task.

Every task returns within seconds and is idempotent, because the broker delivers at least once.
"""

import os

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
# Celery would run Django's checks and drop what they find. They import all pages, which neither
# worker nor beat serves: two seconds at each start, and 40 MB for as long as the process lives.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

for _scheme in ("redis", "rediss"):
    TRANSPORT_ALIASES[_scheme] = "ftdash.broker:Transport"

application = Celery("ftdash")
application.config_from_object("django.conf:settings", namespace="CELERY")
application.autodiscover_tasks(["ftdash"])
