from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0037_refusal_kind")]

    operations = [
        migrations.AddField(
            model_name="run",
            name="clock_behind_s",
            field=models.FloatField(default=0.0),
        ),
    ]
