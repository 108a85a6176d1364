from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="checkpoint",
            name="persisted_bytes",
            field=models.PositiveBigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="subtaskphase",
            name="is_unaligned",
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name="subtaskphase",
            name="persisted_bytes",
            field=models.PositiveBigIntegerField(default=0),
        ),
    ]
