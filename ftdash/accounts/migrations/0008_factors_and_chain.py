"""Whether everyone with a password needs a second factor; a chain of digests in the audit log.

Entries from before get their digests here, in their order. Then triggers refuse every change.
"""

from typing import Any

from django.db import migrations, models

from ftdash.accounts.audit_chain import BEGINNING, digest_after

TABLE = "accounts_adminaction"
REFUSAL = "the audit log is append-only"
SQLITE = [
    f"CREATE TRIGGER {TABLE}_no_{verb.lower()} BEFORE {verb} ON {TABLE}"
    f" BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    for verb in ("UPDATE", "DELETE")
]
POSTGRESQL = [
    f"CREATE FUNCTION {TABLE}_refuse() RETURNS trigger LANGUAGE plpgsql AS"
    f" $$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$",
    f"CREATE TRIGGER {TABLE}_no_change BEFORE UPDATE OR DELETE ON {TABLE}"
    f" FOR EACH ROW EXECUTE FUNCTION {TABLE}_refuse()",
    f"CREATE TRIGGER {TABLE}_no_truncate BEFORE TRUNCATE ON {TABLE}"
    f" FOR EACH STATEMENT EXECUTE FUNCTION {TABLE}_refuse()",
]
UNDO = {
    "sqlite": [f"DROP TRIGGER {TABLE}_no_{verb}" for verb in ("update", "delete")],
    "postgresql": [
        f"DROP TRIGGER {TABLE}_no_change ON {TABLE}",
        f"DROP TRIGGER {TABLE}_no_truncate ON {TABLE}",
        f"DROP FUNCTION {TABLE}_refuse()",
    ],
}


def chain(apps: Any, schema_editor: Any) -> None:
    previous = BEGINNING
    rows = apps.get_model("accounts", "AdminAction").objects
    for row in rows.order_by("pk").iterator():
        digest = digest_after(previous, row)
        rows.filter(pk=row.pk).update(previous=previous, digest=digest)
        previous = digest


def protect(apps: Any, schema_editor: Any) -> None:
    vendor = schema_editor.connection.vendor
    for statement in {"sqlite": SQLITE, "postgresql": POSTGRESQL}[vendor]:
        schema_editor.execute(statement)


def unprotect(apps: Any, schema_editor: Any) -> None:
    for statement in UNDO[schema_editor.connection.vendor]:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0007_listen_scope")]

    operations = [
        migrations.CreateModel(
            name="RequiredFactor",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("since", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="adminaction",
            name="previous",
            field=models.CharField(default="", max_length=64),
        ),
        migrations.AddField(
            model_name="adminaction",
            name="digest",
            field=models.CharField(default="", max_length=64),
        ),
        migrations.RunPython(chain, migrations.RunPython.noop),
        migrations.RunPython(protect, unprotect),
    ]
