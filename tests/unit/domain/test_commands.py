"""Commands: each describes itself, drivers of other versions read it, pages show it as typed."""

from typing import get_args

import msgspec
import pytest

from pipelines.domain.commands import (
    ADDRESS,
    COMMANDS,
    STARTS,
    AllowFaults,
    AnyCommand,
    Cancel,
    ChangeSettings,
    Command,
    DriverCommand,
    KillDriver,
    KillSlot,
    LabelSavepoint,
    RequestKind,
    RestorePipeline,
    SlowSlot,
    StartPipeline,
    StopWithSavepoint,
    TakeSavepoint,
)
from pipelines.domain.status import ClaimMode, DriverKillMoment, KillMoment, SavepointFormat

NUMBERS = {"pipeline": "flights", "parallelism": 2, "replay": "9 records", "allows": "allows"}
OF_AN_OLDER_VERSION = (
    b'{"type":"StopWithSavepoint","request_id":"a","requested_by":"ada","reason":"x",'
    b'"format":"NATIVE","drain":true}'
)


def test_every_command_has_a_kind_of_its_own() -> None:
    commands: tuple[type[Command], ...] = get_args(AnyCommand)

    assert sorted(each.kind for each in commands) == sorted(RequestKind)
    assert list(COMMANDS) == list(RequestKind)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda each: each.__name__)
def test_every_command_names_its_action_and_its_consequence(command: type[Command]) -> None:
    assert command.action == command.action.strip().lower()
    assert command.consequence.format(**NUMBERS).endswith(".")


@pytest.mark.parametrize("command", get_args(AnyCommand), ids=lambda each: each.__name__)
def test_every_command_can_be_built_without_an_address(command: type[Command]) -> None:
    required = [each.name for each in msgspec.structs.fields(command) if each.required]

    assert not set(required) & set(ADDRESS)


def test_a_driver_reads_a_command_that_an_older_control_plane_sent() -> None:
    command = msgspec.json.decode(OF_AN_OLDER_VERSION, type=DriverCommand)

    assert command == StopWithSavepoint(
        request_id="a",  # type: ignore[arg-type]
        requested_by="ada",
        reason="x",
        format=SavepointFormat.NATIVE,
        drain=True,
    )


def test_commands_that_start_a_run_reach_no_driver() -> None:
    driven = set(get_args(DriverCommand))

    assert (StartPipeline.kind, RestorePipeline.kind) == STARTS
    assert not {COMMANDS[kind] for kind in STARTS} & driven


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (Cancel(), {}),
        (TakeSavepoint(), {"type": "CANONICAL"}),
        (TakeSavepoint(label="x"), {"type": "CANONICAL", "label": "x"}),
        (StopWithSavepoint(drain=True), {"type": "CANONICAL", "drain": "true"}),
        (ChangeSettings(settings={"a": "1 s"}), {"a": "1 s"}),
        (KillSlot(slot=0), {"slot": "0", "moment": "now"}),
        (
            KillSlot(slot=0, moment=KillMoment.ALIGNING, within_s=7.5),
            {"slot": "0", "moment": "aligning", "within_s": "7.5"},
        ),
        (
            KillDriver(moment=DriverKillMoment.PUBLISHED),
            {"moment": "published", "within_s": "600"},
        ),
        (
            KillDriver(moment=DriverKillMoment.REWOUND, slot=0),
            {"moment": "rewound", "within_s": "600", "slot": "0"},
        ),
        (SlowSlot(slot=1, delay_ms=2, for_ms=3), {"slot": "1", "delay_ms": "2", "for_ms": "3"}),
        (StartPipeline(parallelism=2), {"parallelism": "2"}),
        (LabelSavepoint(path="/p", label=""), {"path": "/p", "label": ""}),
        (AllowFaults(allowed=False), {"allowed": "false"}),
        (
            RestorePipeline(
                path="/p",
                parallelism=2,
                claim_mode=ClaimMode.CLAIM,
                allow_non_restored_state=False,
                replayed={"b": 1, "a": 2_000},
            ),
            {
                "path": "/p",
                "parallelism": "2",
                "claim-mode": "CLAIM",
                "allow-non-restored-state": "false",
                "replay-quarantine": "2,000 of a, 1 of b",
            },
        ),
    ],
)
def test_the_values_that_a_person_chose_are_shown(command: Command, shown: dict) -> None:
    assert command.parameters == shown
    assert list(command.parameters) == list(shown)
