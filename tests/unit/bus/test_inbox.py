"""The inbox: each command is offered until it is done, and never after."""

import os
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.inbox import Inbox, done_before, forget, submit, withdraw
from pipelines.bus.journal import JournalWriter
from pipelines.domain.commands import KillSlot, TakeSavepoint
from pipelines.domain.errors import Rejected
from pipelines.domain.events import RequestAccepted, RequestEnded
from pipelines.domain.ids import Attempt, RequestId, RunId
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import KillMoment, RequestOutcome


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.of(tmp_path, "flights", RunId("r1"))


def test_commands_are_offered_in_order_of_arrival_until_done(directory: RunDirectory) -> None:
    commands = [savepoint("z"), kill("m"), savepoint("a")]
    for at_ns, command in enumerate(commands):
        submit(directory, command)
        arrive_at(directory, command.request_id, at_ns)

    assert Inbox(directory).pending() == commands

    Inbox(directory).done(RequestId("m"))

    assert Inbox(directory).pending() == [commands[0], commands[2]]


def test_a_command_delivered_twice_is_pending_once(directory: RunDirectory) -> None:
    assert submit(directory, savepoint("a"))

    assert not submit(directory, savepoint("a"))
    assert len(Inbox(directory).pending()) == 1


def test_a_done_command_cannot_be_delivered_again(directory: RunDirectory) -> None:
    submit(directory, savepoint("a"))
    Inbox(directory).done(RequestId("a"))

    assert not submit(directory, savepoint("a"))
    assert Inbox(directory).pending() == []


def test_a_command_marked_done_in_the_old_layout_is_done(directory: RunDirectory) -> None:
    submit(directory, savepoint("a"))
    (directory.requests / "a.done").touch()

    assert Inbox(directory).pending() == []
    assert not submit(directory, savepoint("a"))


def test_looking_for_commands_does_not_list_those_already_done(
    directory: RunDirectory,
) -> None:
    """The driver looks twenty times a second, and a run may get a command every minute."""
    for number in range(3):
        submit(directory, savepoint(f"request.{number}"))
        Inbox(directory).done(RequestId(f"request.{number}"))

    assert [path.name for path in directory.requests.iterdir()] == ["done"]
    assert not submit(directory, savepoint("request.1"))


def test_a_forgotten_command_leaves_no_files(directory: RunDirectory) -> None:
    for request_id in ("a.1", "b"):
        submit(directory, savepoint(request_id))
        Inbox(directory).done(RequestId(request_id))
    (directory.requests / "old.done").touch()  # from before marks had a directory
    (directory.requests / "a.1.json").write_bytes(b"{}")  # from a delivery that raced with it
    os.utime(directory.requests / "old.done", ns=(1_000, 1_000))
    os.utime(directory.requests / "done" / "a.1", ns=(1_000, 1_000))

    old = done_before(directory, 1.0)
    for request_id in old:
        forget(directory, request_id)

    assert sorted(old) == ["a.1", "old"]
    assert [path.name for path in directory.requests.rglob("*")] == ["done", "b"]


def test_a_delivery_that_races_with_done_is_passed_over(directory: RunDirectory) -> None:
    submit(directory, savepoint("a"))
    file = directory.requests / "a.json"
    content = file.read_bytes()
    Inbox(directory).done(RequestId("a"))

    file.write_bytes(content)  # the deliverer looked before the command was done

    assert Inbox(directory).pending() == []


def test_a_withdrawn_command_is_not_offered(directory: RunDirectory) -> None:
    submit(directory, savepoint("a"))

    withdraw(directory, RequestId("a"))

    assert Inbox(directory).pending() == []
    assert not submit(directory, savepoint("a"))


def test_a_new_driver_does_not_repeat_what_the_dead_one_answered(directory: RunDirectory) -> None:
    submit(directory, kill("a"))
    submit(directory, kill("b"))
    answer = RequestEnded(
        request_id=RequestId("a"), outcome=RequestOutcome.SUCCEEDED, message="killed"
    )
    with JournalWriter(directory, RunId("r1"), FixedClock(), lambda *_: None) as journal:
        journal.append(answer, Attempt(1))

    pending = Inbox(directory).pending()

    assert [command.request_id for command in pending] == ["b"]


def test_a_new_driver_knows_what_the_dead_one_accepted_but_never_answered(
    directory: RunDirectory,
) -> None:
    for name in "abc":
        submit(directory, kill(name))
    answer = RequestEnded(
        request_id=RequestId("a"), outcome=RequestOutcome.SUCCEEDED, message="killed"
    )
    with JournalWriter(directory, RunId("r1"), FixedClock(), lambda *_: None) as journal:
        for event in (accepted("a"), answer, accepted("b")):
            journal.append(event, Attempt(1))

    inbox = Inbox(directory)

    assert [command.request_id for command in inbox.pending()] == ["b", "c"]
    assert [name for name in "abc" if inbox.was_taken_up(RequestId(name))] == ["b"]


def test_a_kill_from_before_the_time_limit_existed_gets_the_default_limit(
    directory: RunDirectory,
) -> None:
    older = msgspec.json.decode(msgspec.json.encode(kill("a")))
    del older["within_s"]
    directory.requests.mkdir(parents=True, exist_ok=True)
    (directory.requests / "a.json").write_bytes(msgspec.json.encode(older))

    assert Inbox(directory).pending() == [kill("a")]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"type":"Cancel","reason":"\xff"}',
        b'{"type":"Cancel","odd":' + b"[" * 9_999,
        b'{"type":"Cancel"}',  # addressed to no request
        b'{"type":"Cancel","request_id":"c"}',
        None,
    ],
)
def test_an_unreadable_command_does_not_stop_the_others(
    directory: RunDirectory, content: bytes | None
) -> None:
    submit(directory, savepoint("a"))
    odd = directory.requests / "b.json"
    odd.mkdir() if content is None else odd.write_bytes(content)

    assert Inbox(directory).pending() == [savepoint("a")]
    assert [path.name for path in directory.requests.glob("b.*")] == ["b.unreadable"]


@pytest.mark.parametrize("name", ["../a", "", ".a", "a/b", "a" * 81])
def test_an_id_that_is_not_a_plain_file_name_is_refused(directory: RunDirectory, name: str) -> None:
    with pytest.raises(Rejected, match="not a plain name"):
        submit(directory, savepoint(name))


class FixedClock:
    def monotonic_ms(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 1_000


def savepoint(name: str) -> TakeSavepoint:
    return TakeSavepoint(request_id=RequestId(name), requested_by="ann", reason="upgrade")


def accepted(name: str) -> RequestAccepted:
    return RequestAccepted(request_id=RequestId(name))


def kill(name: str) -> KillSlot:
    return KillSlot(
        request_id=RequestId(name),
        requested_by="ann",
        reason="drill",
        slot=1,
        moment=KillMoment.ALIGNING,
    )


def arrive_at(directory: RunDirectory, request_id: str, at_ns: int) -> None:
    os.utime(directory.requests / f"{request_id}.json", ns=(at_ns, at_ns))
