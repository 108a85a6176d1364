"""The Celery application. It serves the control plane only: a stream never runs inside a task.

Every task returns within seconds and is idempotent, because the broker delivers at least once.
"""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")

application = Celery("ftdash")
application.config_from_object("django.conf:settings", namespace="CELERY")
application.autodiscover_tasks(["ftdash"])
