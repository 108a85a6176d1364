"""Indexes for the order in which the log of events is read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("checkpoints", "0005_longest_alignment")]

    operations = [
        migrations.AddIndex(
            model_name="audit",
            index=models.Index(fields=["created_at", "id"], name="audit_at"),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(fields=["trigger_at", "id"], name="checkpoint_at"),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(
                    ("kind", "CHECKPOINT"),
                    models.Q(("status", "FAILED"), _negated=True),
                    _negated=True,
                ),
                fields=["trigger_at", "id"],
                name="checkpoint_not_routine_at",
            ),
        ),
    ]
