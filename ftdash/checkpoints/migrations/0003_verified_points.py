from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0002_records_in_flight"),
    ]

    operations = [
        migrations.AddField(
            model_name="checkpoint",
            name="verified_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="checkpoint",
            name="problem",
            field=models.TextField(default=""),
        ),
    ]
