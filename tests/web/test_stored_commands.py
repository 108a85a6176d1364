"""Commands in rows: what is stored is what the driver gets, also what an older version stored."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from ftdash.jobs.models import Request
from pipelines.domain.commands import (
    AllowFaults,
    AnyCommand,
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    Command,
    DisposeSavepoint,
    KillDriver,
    KillSlot,
    LabelSavepoint,
    RestorePipeline,
    SlowSlot,
    StartPipeline,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
    UpgradePipeline,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode, DriverKillMoment, KillMoment, SavepointFormat
from tests.web.journals import new_request, new_run

BEFORE, AFTER = "0025_points_not_counted", "0027_no_parameters"
RESTORED = {"path": "/p", "parallelism": 2, "allow_non_restored_state": False}
OF_AN_OLDER_VERSION: list[tuple[str, dict[str, str], Command]] = [
    ("SUBMIT", {"parallelism": "3"}, StartPipeline(parallelism=3)),
    (
        "RESTORE",
        {"path": "/p", "parallelism": "2"},
        RestorePipeline(claim_mode=ClaimMode.NO_CLAIM, **RESTORED),
    ),
    (
        "RESTORE",
        {
            "path": "/p",
            "parallelism": "2",
            "claim-mode": "CLAIM",
            "allow-non-restored-state": "true",
            "replay-quarantine": "2,000 of a b, 1 of c",
        },
        RestorePipeline(
            claim_mode=ClaimMode.CLAIM,
            replayed={"a b": 2_000, "c": 1},
            **RESTORED | {"allow_non_restored_state": True},
        ),
    ),
    ("CHECKPOINT", {}, TriggerCheckpoint()),
    ("SAVEPOINT", {}, TakeSavepoint()),
    (
        "SAVEPOINT",
        {"type": "NATIVE", "label": "x"},
        TakeSavepoint(format=SavepointFormat.NATIVE, label="x"),
    ),
    ("STOP_WITH_SAVEPOINT", {"type": "CANONICAL"}, StopWithSavepoint()),
    ("STOP_WITH_SAVEPOINT", {"type": "CANONICAL", "drain": "true"}, StopWithSavepoint(drain=True)),
    ("CANCEL_WITH_SAVEPOINT", {"type": "CANONICAL"}, CancelWithSavepoint()),
    ("CANCEL", {}, Cancel()),
    ("DISPOSE", {"path": "/p"}, DisposeSavepoint(path="/p")),
    ("LABEL", {"path": "/p", "label": ""}, LabelSavepoint(path="/p", label="")),
    ("CHANGE_SETTINGS", {"a.b": "1 s"}, ChangeSettings(settings={"a.b": "1 s"})),
    ("KILL_SLOT", {"slot": "0", "moment": "now"}, KillSlot(slot=0)),
    (
        "KILL_SLOT",
        {"slot": "1", "moment": "aligning", "within_s": "20"},
        KillSlot(slot=1, moment=KillMoment.ALIGNING, within_s=20),
    ),
    ("KILL_SLOT", {"slot": "1", "moment": "cutting"}, KillSlot(slot=1, moment=KillMoment.CUTTING)),
    ("KILL_DRIVER", {"moment": "published"}, KillDriver(moment=DriverKillMoment.PUBLISHED)),
    (
        "KILL_DRIVER",
        {"moment": "rewound", "within_s": "7.5", "slot": "0"},
        KillDriver(moment=DriverKillMoment.REWOUND, within_s=7.5, slot=0),
    ),
    (
        "SLOW_SLOT",
        {"slot": "1", "delay_ms": "3000", "for_ms": "4"},
        SlowSlot(slot=1, delay_ms=3_000, for_ms=4),
    ),
    ("ALLOW_FAULTS", {"allowed": "true"}, AllowFaults(allowed=True)),
    ("ALLOW_FAULTS", {"allowed": "false"}, AllowFaults(allowed=False)),
]


SINCE = [
    UpgradePipeline(
        code=ShippedCode(package="shop", version="1.1", file="shop.whl", sha256="a" * 64),
        allow_non_restored_state=True,
    )
]
"""Commands that the version before the migration did not know."""


@pytest.fixture
def older_version(transactional_db: None) -> Iterator[Any]:
    """Tables as they were before the migration, and what reads them."""
    executor = MigrationExecutor(connection)
    executor.migrate([("jobs", BEFORE)])
    yield executor.loader.project_state([("jobs", BEFORE)]).apps
    MigrationExecutor(connection).migrate(executor.loader.graph.leaf_nodes())


@pytest.mark.django_db
@pytest.mark.parametrize(
    "command", [*(each for _, _, each in OF_AN_OLDER_VERSION), *SINCE], ids=str
)
def test_a_row_holds_the_command_that_the_driver_gets(command: Command) -> None:
    stored = new_request(new_run(), command)

    stored.refresh_from_db()
    assert stored.kind == command.kind
    assert type(stored.command) is type(command)
    assert stored.command.parameters == command.parameters
    assert (stored.command.request_id, stored.command.requested_by, stored.command.reason) == (
        RequestId("request-1"),
        "ann",
        "upgrade",
    )


def test_every_command_is_among_those_that_are_tried() -> None:
    tried = [*(each for _, _, each in OF_AN_OLDER_VERSION), *SINCE]

    assert {type(each) for each in tried} == set(get_args(AnyCommand))


def test_rows_of_an_older_version_become_the_commands_that_they_meant(older_version: Any) -> None:
    now = timezone.now()
    pipeline = older_version.get_model("jobs", "Pipeline").objects.create(
        name="flights", flow="flight_delays", created_at=now
    )
    for number, (kind, given, _) in enumerate(OF_AN_OLDER_VERSION):
        older_version.get_model("jobs", "Request").objects.create(
            request_id=f"r{number}",
            kind=kind,
            pipeline=pipeline,
            parameters=given,
            requester="ann",
            reason="upgrade",
            created_at=now,
            deadline_at=now,
        )

    MigrationExecutor(connection).migrate([("jobs", AFTER)])

    rows = Request.objects.order_by("pk")
    assert [row.kind for row in rows] == [kind for kind, _, _ in OF_AN_OLDER_VERSION]
    assert [row.command.parameters for row in rows] == [
        command.parameters for _, _, command in OF_AN_OLDER_VERSION
    ]
    assert [type(row.command) for row in rows] == [type(each) for _, _, each in OF_AN_OLDER_VERSION]
