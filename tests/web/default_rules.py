"""The alert rules of a new installation, also where a test before has emptied every table."""

from importlib import import_module

from django.apps import apps


def make_default_rules() -> None:
    for name in ("0002_default_rules", "0005_failures_at_once"):
        import_module(f"ftdash.alerts.migrations.{name}").make(apps, None)
