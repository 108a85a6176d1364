from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0016_slow_storage"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="journal_begins",
            field=models.PositiveBigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="run",
            name="journal_gap",
            field=models.TextField(default=""),
        ),
    ]
