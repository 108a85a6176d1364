from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0024_damage_findings"),
    ]

    operations = [
        migrations.AddField(
            model_name="pointsverification",
            name="not_counted",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
