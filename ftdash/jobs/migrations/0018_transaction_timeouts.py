from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0017_shortened_journals"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="transaction_timeouts_ms",
            field=models.JSONField(default=dict),
        ),
    ]
