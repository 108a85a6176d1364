"""An installed database, whose tables the replaced migrations created, stays as it is."""

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.exceptions import InconsistentMigrationHistory
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

pytestmark = pytest.mark.django_db


def test_an_installed_database_needs_no_migration() -> None:
    pretend_replaced_were_applied()

    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    executor.migrate(executor.loader.graph.leaf_nodes())

    assert plan == []
    assert not executor.loader.detect_conflicts()
    assert names_on_disk() <= MigrationRecorder(connection).applied_migrations().keys()


def test_a_database_of_an_older_version_is_refused() -> None:
    pretend_replaced_were_applied()
    MigrationRecorder(connection).record_unapplied("jobs", "0031_failure_kind")

    with pytest.raises(InconsistentMigrationHistory, match="before its dependency jobs"):
        call_command("migrate", verbosity=0)


def pretend_replaced_were_applied() -> None:
    """The last migration of each chain implies those before it."""
    recorder = MigrationRecorder(connection)
    for (app, name), migration in MigrationLoader(connection).disk_migrations.items():
        if migration.__module__.startswith("ftdash.") and migration.replaces:
            recorder.record_unapplied(app, name)
            for each in migration.replaces:
                recorder.record_applied(*each)


def names_on_disk() -> set[tuple[str, str]]:
    return set(MigrationLoader(connection).disk_migrations)
