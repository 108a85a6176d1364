from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0005_point_inspections"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="guarantee_reason",
            field=models.TextField(default=""),
        ),
    ]
