"""Commands in rows: the driver gets exactly the stored command."""

from typing import get_args

import pytest

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
    RetryNow,
    SlowSlot,
    StartPipeline,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
    UndoStart,
    UpgradePipeline,
)
from pipelines.domain.ids import RequestId
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode, DriverKillMoment, KillMoment, SavepointFormat
from tests.web.journals import new_request, new_run

RESTORED = {"path": "/p", "parallelism": 2, "allow_non_restored_state": False}
COMMANDS: list[Command] = [
    StartPipeline(parallelism=3),
    RestorePipeline(claim_mode=ClaimMode.NO_CLAIM, **RESTORED),
    RestorePipeline(
        claim_mode=ClaimMode.CLAIM,
        replayed={"a b": 2_000, "c": 1},
        **RESTORED | {"allow_non_restored_state": True},
    ),
    TriggerCheckpoint(),
    TakeSavepoint(),
    TakeSavepoint(format=SavepointFormat.NATIVE, label="x"),
    StopWithSavepoint(),
    StopWithSavepoint(drain=True),
    CancelWithSavepoint(),
    Cancel(),
    DisposeSavepoint(path="/p"),
    LabelSavepoint(path="/p", label=""),
    ChangeSettings(settings={"a.b": "1 s"}),
    RetryNow(),
    UndoStart(),
    KillSlot(slot=0),
    KillSlot(slot=1, moment=KillMoment.ALIGNING, within_s=20),
    KillSlot(slot=1, moment=KillMoment.CUTTING),
    KillDriver(moment=DriverKillMoment.PUBLISHED),
    KillDriver(moment=DriverKillMoment.REWOUND, within_s=7.5, slot=0),
    SlowSlot(slot=1, delay_ms=3_000, for_ms=4),
    AllowFaults(allowed=True),
    AllowFaults(allowed=False),
    UpgradePipeline(
        code=ShippedCode(package="shop", version="1.1", file="shop.whl", sha256="a" * 64),
        allow_non_restored_state=True,
    ),
]


@pytest.mark.django_db
@pytest.mark.parametrize("command", COMMANDS, ids=str)
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


def test_every_command_is_among_the_tested_ones() -> None:
    assert {type(each) for each in COMMANDS} == set(get_args(AnyCommand))
