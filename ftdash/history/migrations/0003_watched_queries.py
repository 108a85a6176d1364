"""How long batches of watched queries are kept."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("history", "0001_squashed_0002_pruned_counts")]

    operations = [
        migrations.AlterField(
            model_name="limit",
            name="kind",
            field=models.CharField(
                choices=[
                    ("METRICS", "metrics"),
                    ("CHECKPOINTS", "checkpoints"),
                    ("EVENTS", "failures and events"),
                    ("ALERTS", "alerts"),
                    ("LABS", "labs"),
                    ("QUERIES", "batches of watched queries"),
                ],
                max_length=20,
                primary_key=True,
                serialize=False,
            ),
        ),
    ]
