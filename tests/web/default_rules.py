"""The alert rules of a new installation, even if an earlier test has emptied every table."""

from importlib import import_module

from django.apps import apps


def make_default_rules() -> None:
    import_module("ftdash.alerts.migrations.0001_squashed_0005_failures_at_once").make(apps, None)
