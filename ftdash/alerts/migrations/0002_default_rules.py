"""What a new installation alerts of; told on the pages only, until there is a channel."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

RULES: list[
    tuple[str, str, float, float, float, float]
] = [  # name, watched, fires above for seconds, clears below for seconds
    ("no checkpoint completes", "SINCE_CHECKPOINT", 300, 10, 120, 10),
    ("no output is committed", "SINCE_OUTPUT", 300, 10, 120, 10),
    ("checkpoints fail", "FAILED_IN_ROW", 2, 0, 1, 10),
    ("it restarts again and again", "RESTARTS_LATELY", 3, 0, 1, 60),
]


def make(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    make_all(apps, RULES)


def make_all(apps: Apps, rules: list[tuple[str, str, float, float, float, float]]) -> None:
    rule = apps.get_model("alerts", "AlertRule")
    for name, watched, fire_above, fire_after_s, clear_below, clear_after_s in rules:
        rule.objects.get_or_create(
            name=name,
            defaults={
                "watched": watched,
                "fire_above": fire_above,
                "fire_after_s": fire_after_s,
                "clear_below": clear_below,
                "clear_after_s": clear_after_s,
            },
        )


class Migration(migrations.Migration):
    dependencies = [("alerts", "0001_initial")]

    operations = [migrations.RunPython(make, migrations.RunPython.noop)]
