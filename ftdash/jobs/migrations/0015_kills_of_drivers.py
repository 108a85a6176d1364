from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0014_log_indexes"),
    ]

    operations = [
        migrations.AlterField(
            model_name="request",
            name="kind",
            field=models.CharField(
                choices=[
                    ("SUBMIT", "start"),
                    ("RESTORE", "restore"),
                    ("CHECKPOINT", "trigger checkpoint"),
                    ("SAVEPOINT", "savepoint"),
                    ("STOP_WITH_SAVEPOINT", "stop with savepoint"),
                    ("CANCEL_WITH_SAVEPOINT", "cancel with savepoint"),
                    ("CANCEL", "cancel"),
                    ("DISPOSE", "dispose of a savepoint"),
                    ("LABEL", "label a savepoint"),
                    ("CHANGE_SETTINGS", "change settings"),
                    ("KILL_SLOT", "kill a slot"),
                    ("KILL_DRIVER", "kill the driver"),
                    ("ALLOW_FAULTS", "allow or forbid faults on purpose"),
                ],
                max_length=30,
            ),
        ),
    ]
