from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0010_faults_allowed_by_hand"),
    ]

    operations = [
        migrations.CreateModel(
            name="PointLabel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", models.TextField(null=True, unique=True)),
                ("request_id", models.CharField(max_length=80, null=True, unique=True)),
                ("label", models.CharField(max_length=80)),
                ("labelled_by", models.CharField(max_length=150)),
                ("labelled_at", models.DateTimeField()),
            ],
        ),
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
                    ("ALLOW_FAULTS", "allow or forbid faults on purpose"),
                ],
                max_length=30,
            ),
        ),
    ]
