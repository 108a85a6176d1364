"""A scope for the listeners of Structured Streaming queries."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0006_refusals")]

    operations = [
        migrations.AlterField(
            model_name="apitoken",
            name="scope",
            field=models.CharField(
                choices=[
                    ("read", "see everything"),
                    ("act", "see everything and act on pipelines"),
                    ("configure", "see everything, act on pipelines, change alerts and retention"),
                    (
                        "listen",
                        "report the progress of Structured Streaming queries, and see nothing",
                    ),
                ],
                max_length=10,
            ),
        ),
    ]
