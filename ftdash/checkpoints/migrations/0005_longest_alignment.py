from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0004_ledger_and_audits"),
    ]

    operations = [
        migrations.AddField(
            model_name="checkpoint",
            name="alignment_ms",
            field=models.FloatField(null=True),
        ),
    ]
