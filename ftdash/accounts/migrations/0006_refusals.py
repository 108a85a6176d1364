"""The log of what people changed also keeps what was refused."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_squashed_0005_configure_scope")]

    operations = [
        migrations.AddField(
            model_name="adminaction",
            name="refusal",
            field=models.TextField(default=""),
        ),
    ]
