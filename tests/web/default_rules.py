"""The alert rules of a new installation, also where a test before has emptied every table."""

from importlib import import_module

from django.apps import apps


def make_default_rules() -> None:
    import_module("ftdash.alerts.migrations.0002_default_rules").make(apps, None)
