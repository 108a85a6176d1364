from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("gameday", "0002_held_processes"),
    ]

    operations = [
        migrations.AddField(
            model_name="gameday",
            name="asked_id",
            field=models.CharField(max_length=80, null=True, unique=True),
        ),
    ]
