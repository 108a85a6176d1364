from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("watching", "0004_limits_of_queries")]

    operations = [
        migrations.AddField(
            model_name="directoryreading",
            name="found_at",
            field=models.DateTimeField(null=True),
        ),
    ]
