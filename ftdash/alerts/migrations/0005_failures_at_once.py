"""Two more rules of an installation: what needs a person alerts at once."""

from importlib import import_module

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

RULES = [  # name, watched, fires above for seconds, clears below for seconds
    ("a run has failed", "FAILED_RUN", 0.5, 0, 0.5, 0),
    ("a recovery point is damaged", "DAMAGED_POINTS", 0.5, 0, 0.5, 0),
]


def make(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    import_module("ftdash.alerts.migrations.0002_default_rules").make_all(apps, RULES)


class Migration(migrations.Migration):
    dependencies = [("alerts", "0004_log_indexes")]

    operations = [migrations.RunPython(make, migrations.RunPython.noop)]
