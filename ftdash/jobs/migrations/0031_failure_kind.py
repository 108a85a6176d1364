from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0030_upgrades"),
    ]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="kind",
            field=models.CharField(default="unknown", max_length=30),
        ),
    ]
