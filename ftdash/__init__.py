"""The control plane and the dashboard: Django, Celery, and the rows that operators see.

The Celery application loads with the package, so that `shared_task` always finds its broker.
"""

from ftdash.celery import application as celery_application

__all__ = ["celery_application"]
