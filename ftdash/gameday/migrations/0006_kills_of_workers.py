from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("gameday", "0005_more_faults"),
    ]

    operations = [
        migrations.AddField(
            model_name="gameday",
            name="watched_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AlterField(
            model_name="gameday",
            name="fault",
            field=models.CharField(
                choices=[
                    ("KILL_SLOT", "kill a slot"),
                    ("KILL_SLOT_ALIGNING", "kill a slot while it aligns"),
                    ("KILL_SLOT_CUTTING", "kill a slot before it cuts its state"),
                    ("KILL_SLOT_UPLOADING", "kill a slot before it uploads"),
                    ("KILL_SLOT_UPLOADED", "kill a slot after its upload"),
                    ("KILL_SLOT_COMMITTING", "kill a slot before it commits"),
                    ("KILL_SLOT_COMMITTED", "kill a slot after it committed"),
                    ("KILL_DRIVER", "kill the driver"),
                    ("KILL_DRIVER_ACKNOWLEDGED", "kill the driver before a manifest"),
                    ("KILL_DRIVER_PUBLISHED", "kill the driver after a manifest"),
                    ("KILL_WORKER", "kill the worker that watches"),
                    ("FREEZE_SLOT", "stop a slot, and continue it too late"),
                    ("FULL_DISK", "a slot can write no file"),
                ],
                max_length=30,
            ),
        ),
    ]
