from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0012_point_comparisons"),
    ]

    operations = [
        migrations.AddField(
            model_name="pointcomparison",
            name="waiting_for",
            field=models.TextField(default=""),
        ),
        migrations.AddField(
            model_name="pointcomparison",
            name="waiting_since",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="pointinspection",
            name="waiting_for",
            field=models.TextField(default=""),
        ),
    ]
