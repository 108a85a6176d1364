"""The parameters are part of the command now; rows may have kinds that later versions add.

Apart from the conversion before it, because PostgreSQL alters no table with changes under way.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0026_commands"),
    ]

    operations = [
        migrations.RemoveField(model_name="request", name="parameters"),
        migrations.AlterField(
            model_name="request",
            name="kind",
            field=models.CharField(max_length=30),
        ),
    ]
