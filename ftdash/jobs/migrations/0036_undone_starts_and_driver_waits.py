from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0035_run_waits")]

    operations = [
        migrations.AddField(
            model_name="run", name="puts_back", field=models.BooleanField(default=False)
        ),
        migrations.AddField(
            model_name="run", name="start_undone", field=models.BooleanField(default=False)
        ),
        migrations.AddField(
            model_name="run", name="driver_due_at", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(
            model_name="run", name="driver_waits_since", field=models.DateTimeField(null=True)
        ),
    ]
