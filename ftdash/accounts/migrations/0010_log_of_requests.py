from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0009_saved_views"),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name="adminaction",
            name="adminaction_at",
        ),
        migrations.AddIndex(
            model_name="adminaction",
            index=models.Index(
                condition=models.Q(
                    models.Q(("what", "sent a request to"), _negated=True),
                    models.Q(("what", "tried to send a request to"), _negated=True),
                ),
                fields=["at", "id"],
                name="setting_at",
            ),
        ),
        migrations.AddIndex(
            model_name="adminaction",
            index=models.Index(
                condition=models.Q(("what", "tried to send a request to")),
                fields=["at", "id"],
                name="refused_request_at",
            ),
        ),
    ]
