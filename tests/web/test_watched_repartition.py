"""A repartition of a watched query's state: requested, refused, done on a fork, undone."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import AdminAction, TokenScope
from ftdash.watching.models import QueryWork, WorkKind, WorkState
from ftdash.watching.services import execution, forks, registration, work
from ftdash.watching.services.registration import Sighting
from ftdash.watching.services.state import answer_of_spark
from ftdash.watching.work_requests import Dealt, Rewind
from pipelines.domain.errors import Rejected
from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from tests.structured_directories import Traits, Written, write_query
from tests.web.api_callers import bearer
from tests.web.page_words import text_of, words_in

pytestmark = pytest.mark.usefixtures("site")

HOME = "/watched/orders/"
API = "/api/watched-queries/orders/"
ROCKSDB = Traits(store="rocksdb", partitions=2, is_running=True)
STAND_IN = """
import json, sys
from pathlib import Path
from tests.structured_directories import Traits, Written

asked = json.loads(sys.stdin.readline())
place, batch = Path(asked["location"]), asked["batch_id"]
traits = Traits(store="rocksdb", partitions=asked["partitions"], snapshot_every=1)
Written(place, place, traits).go_on(batch + 1, 1_790_000_000_000)
print(json.dumps({"compared_rows": 20}))
"""
"""Writes the files that Spark would. `test_structured_queries` has the real one."""

CHANGED = "The repartition changed the state of operator 0, store default."


@pytest.fixture
def root(settings: Any, tmp_path: Path) -> Path:
    root = (tmp_path / "checkpoints").resolve()
    root.mkdir()
    settings.WATCH_ROOTS = [str(root)]
    settings.WATCH_SAVEPOINTS = str(tmp_path / "savepoints")
    settings.REPARTITION_COMMAND = [sys.executable, "-c", STAND_IN]
    return root


@pytest.fixture
def made(root: Path) -> Written:
    return watched(root, ROCKSDB)


def watched(root: Path, traits: Traits) -> Written:
    made = write_query(root / "orders", traits)
    seen = Sighting(directory=str(made.checkpoint))
    registration.watch(name="orders", seen=seen, requester="ada", reason="to see it")
    return made


def asked_for(root: Path, partitions: str = "3") -> dict[str, Any]:
    return {
        "origin": "batch:7",
        "target": str(root / "fork"),
        "boundaries": "new",
        "output": "new",
        "partitions": partitions,
        "reason": "more cores",
    }


def asked(root: Path, partitions: int = 3) -> int:
    """Asks for a fork and returns the key of the work."""
    wanted = Rewind(batch_id=7, target=str(root / "fork"), partitions=partitions)
    return forks.ask_for_fork("orders", wanted, requester="ada", reason="more cores")


def carried_out() -> QueryWork:
    """Carries out the newest work as its process would."""
    QueryWork.objects.filter(state=WorkState.WAITING).update(state=WorkState.RUNNING)
    return execution.carry_out(QueryWork.objects.latest("pk").pk)


def test_a_repartition_is_judged_carried_out_and_shown_on_its_pages(
    admin: Client, made: Written, root: Path
) -> None:
    before = contents(made.checkpoint)
    assert "Repartition" in words_in(text_of(admin, HOME))
    words = words_in(text_of(admin, f"{HOME}rewind/"))
    assert "Spark repartitions the fork, which it calls experimental" in words
    assert "It needs the RocksDB store, and a committed batch of a stopped query" in words
    assert "compares every row before and after, and removes the fork if one differs" in words

    judged = admin.post(f"{HOME}rewind/", asked_for(root)).url
    carried_out()
    words = words_in(text_of(admin, judged))
    assert "state in 3 partitions" in words
    assert "to 3 partitions instead of 2, and takes batch 8 of the fork" in words
    assert not (root / "fork").exists()

    forked = admin.post(f"{judged}fork/").url
    row = carried_out()
    assert row.state == WorkState.SUCCEEDED, row.problem
    words = words_in(text_of(admin, forked))
    assert "begins with batch 9. Its state has 3 partitions now: 20 rows compared" in words
    after = read_tree(LocalTree(root / "fork"))
    assert after.batches[-1].shuffle_partitions == 3
    assert after.query_id == row.result["query_id"]
    assert contents(made.checkpoint) == before
    detail = AdminAction.objects.get(what="rewound into a fork").detail
    assert detail == f"batch 7 into {root}/fork, with 3 state partitions"


def test_a_refusal_comes_before_spark_is_started(
    root: Path, tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.REPARTITION_COMMAND = ["touch", str(tmp_path / "started")]
    watched(root, Traits(is_running=True))
    words = ("watch", "fork", "orders", "--batch", "7", "--target", str(root / "fork"))

    with pytest.raises(CommandError) as judged:
        call_command(*words, "--partitions", "3", "--check")
    with pytest.raises(CommandError, match="RocksDB only") as carried:
        call_command(*words, "--partitions", "3")

    assert (judged.value.returncode, carried.value.returncode) == (1, 2)
    assert "refused: Spark repartitions state of RocksDB only" in capsys.readouterr().out
    assert not (root / "fork").exists()
    assert not (tmp_path / "started").exists()


def test_an_invalid_number_of_partitions_is_refused_by_form_api_and_service(
    admin: Client, made: Written, root: Path
) -> None:
    answer = admin.post(f"{HOME}rewind/", asked_for(root, "0"))
    assert answer.status_code == 422
    assert "greater than or equal to 1" in answer.content.decode()

    body = json.dumps({"reason": "x", "batch_id": 7, "target": "/fork", "partitions": 0})
    client = bearer(TokenScope.ACT)
    for address in ("verdicts", "forks"):
        answer = client.post(f"{API}{address}", body, content_type="application/json")
        assert answer.status_code == 422
        assert "partitions" in answer.content.decode()

    with pytest.raises(Rejected, match=r"Give 1 to 10,000 state partitions, not 0\."):
        asked(root, partitions=0)
    assert not QueryWork.objects.exists()


def test_an_operator_and_a_read_token_cannot_repartition(
    operator: Client, made: Written, root: Path
) -> None:
    assert "Repartition" not in words_in(text_of(operator, HOME))
    assert operator.post(f"{HOME}rewind/", asked_for(root)).status_code == 403
    body = json.dumps({"reason": "x", "batch_id": 7, "target": "/fork", "partitions": 3})
    reader = bearer(TokenScope.READ)
    refused = reader.post(f"{API}forks", body, content_type="application/json")

    assert refused.status_code == 403
    assert not QueryWork.objects.exists()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"echo trace >&2; echo '{CHANGED}' >&2; exit 1", CHANGED),
        ("""echo '{"compared_rows": 3}'""", "batch 8 is not committed."),
        ("echo {}", "its answer cannot be read"),
    ],
)
def test_a_repartition_that_fails_leaves_no_fork(
    made: Written, root: Path, settings: Any, script: str, problem: str
) -> None:
    settings.REPARTITION_COMMAND = ["sh", "-c", script]
    before = contents(root)

    asked(root)
    row = carried_out()

    assert row.state == WorkState.FAILED
    assert problem in row.problem
    assert "the fork is removed" in row.problem
    assert contents(root) == before
    assert not (root / "fork").exists()


def test_a_fork_that_was_not_compared_is_removed_when_its_process_is_gone(
    made: Written, root: Path
) -> None:
    """It has its `metadata`; a fork that is only copied would be complete by then."""
    key = asked(root)
    carried_out()
    assert (root / "fork/metadata").exists()
    long_ago = timezone.now() - timedelta(minutes=10)
    QueryWork.objects.filter(pk=key).update(
        state=WorkState.RUNNING, ended_at=None, moved_at=long_ago
    )

    work.end_silent()

    assert QueryWork.objects.get(pk=key).problem == work.INTERRUPTED
    assert not (root / "fork").exists()


def test_the_command_and_programs_can_repartition_too(
    made: Written, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("watch", "fork", "orders", "--batch", "7", "--target", str(root / "fork"))
    call_command(*words, "--partitions", "3")
    assert "the state has 3 partitions now; 20 rows compared" in capsys.readouterr().out

    body = {"reason": "x", "batch_id": 7, "target": str(root / "again"), "partitions": 1}
    client = bearer(TokenScope.ACT)
    answer = client.post(f"{API}forks", json.dumps(body), content_type="application/json")
    assert answer.status_code == 200
    carried_out()
    found = client.get(f"{API}works/{answer.json()['key']}").json()
    assert (found["state"], found["kind"]) == ("SUCCEEDED", WorkKind.FORK)
    assert (found["result"]["partitions"], found["result"]["next_batch"]) == (1, 9)


def test_spark_that_takes_too_long_is_ended() -> None:
    with pytest.raises(Rejected, match="It was late"):
        answer_of_spark(
            ["sleep", "600"], {}, Dealt, limit_s=0.05, failed="It failed", late="It was late"
        )


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
