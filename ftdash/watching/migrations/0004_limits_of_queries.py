from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.functions import Coalesce
from django.utils import timezone


def rename_slow_batches(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """On the way back: the version before knows no such cause. The incidents are over, because it
    does not judge them, and get the nearest cause that it can show; their text stays."""
    rows = apps.get_model("watching", "WatchedIncident").objects.filter(cause="query-slow")
    rows.update(cause="query-behind", closed_at=Coalesce("closed_at", timezone.now()))


class Migration(migrations.Migration):
    dependencies = [("watching", "0003_incidents_of_flink_clusters")]

    operations = [
        migrations.AddField(
            model_name="watchedquery",
            name="limits",
            field=models.JSONField(null=True),
        ),
        migrations.RunPython(migrations.RunPython.noop, rename_slow_batches),
    ]
