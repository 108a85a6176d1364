"""The page of a guarantee: level, reason, ledger, rows waiting for their commit, and proof."""

import re
from datetime import timedelta

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.checkpoints import projector
from ftdash.checkpoints.models import Audit, Checkpoint, LedgerRow
from ftdash.checkpoints.queries.guarantee import ledger
from ftdash.jobs.models import Pipeline, Run
from ftdash.projection.projector import Projector, rebuild
from pipelines.audit.report import SinkReport
from pipelines.domain.events import LedgerAdvanced, LedgerBegun
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import (
    LedgerEntry,
    OutputShare,
    SinkOutput,
    SourceInput,
    SplitRange,
)
from tests.web.audit_reports import NOT_PROVEN, PROVEN, report_of
from tests.web.journals import Story, new_run, run_started
from tests.web.page_words import words_in
from tests.web.people import operator_user, signed_in

pytestmark = pytest.mark.usefixtures("site")
NAME = "flights"
ALL_ONES = "f" * 16


@pytest.fixture
def run() -> Run:
    return new_run(NAME)


def test_the_page_shows_the_level_the_ledger_and_waiting_output(run: Run, operator: Client) -> None:
    story = Story(run).started().completed()
    story.tell(entry(1, share(1)), entry(2, share(2), share(2, subtask=1)))
    fold()

    page = words_of(operator)

    for shown in (
        "exactly once from end to end, because every link is exact",
        "1 checkpoint complete and not committed yet, with 2 transactions.",
        "The oldest is checkpoint 2",
        "Records in and out of the newest checkpoints of run 1, newest first",
        "flights: 10 records, 1 range",
        "0: 10 to 20",
        "delays: 10 rows, digest 000000000000000a",
        "part-2-1",
        "committed",
        "The output has not been audited yet.",
    ):
        assert shown in page
    assert page.count("Records in and out of") == 1


def test_the_page_links_to_the_lab_that_compares_levels(run: Run, operator: Client) -> None:
    answer = operator.get(reverse("guarantee", args=[NAME])).content.decode()

    assert f'<a href="{reverse("lab")}">guarantee lab</a>' in answer


def test_the_page_says_when_a_target_gives_up_output_and_what_is_lost(
    run: Run, operator: Client
) -> None:
    story = Story(run).started().completed().triggered().wait(80)
    story.tell(entry(1, share(1)), entry(2, share(2)), entry(3, share(3)))
    fold()
    without = words_of(operator)
    (triggered,) = Checkpoint.objects.filter(checkpoint_id=2)
    held(delays=900_000, other=1)

    (waits,) = ledger("flights-1", 5).held
    early = words_of(operator)
    held(delays=1)
    Checkpoint.objects.update(trigger_at=timezone.now() - timedelta(seconds=1))
    late = words_of(operator)

    assert "gives it up" not in without
    assert (waits.sink, waits.checkpoint_id, waits.rows) == ("delays", 2, 5)
    assert (waits.since, waits.until - waits.since) == (
        triggered.trigger_at,
        timedelta(minutes=15),
    )
    assert "The oldest transaction of delays, of checkpoint 2, has been open for" in early
    assert "and 5 rows of output cannot be committed any more." in early
    assert "The target of delays may have given up its oldest transaction" in late


def test_transaction_timeouts_are_those_that_the_driver_reported_last(run: Run) -> None:
    told = msgspec.structs.replace(run_started(1), transaction_timeouts_ms={Uid("delays"): 5})
    Story(run).started().tell(told)
    fold()

    assert Run.objects.get().transaction_timeouts_ms == {"delays": 5}


def test_digests_of_subtasks_are_added_up() -> None:
    story = Story(new_run(NAME)).started()
    story.tell(entry(1, share(1, digest=ALL_ONES), share(1, subtask=1, digest="0" * 15 + "3")))
    fold()

    (line,) = ledger("flights-1", 5).lines

    (output,) = line.outputs
    assert (output.rows, output.digest) == (10, "0" * 15 + "2")
    assert output.tokens == ["part-1-0", "part-1-1"]


def test_output_of_an_earlier_entry_is_not_listed_again(run: Run) -> None:
    Story(run).started().tell(entry(1, share(1)), entry(2, share(1), share(2)))
    fold()

    newest, _ = ledger("flights-1", 5).lines

    assert newest.tokens == ["part-2-0"]


def test_output_of_an_aborted_checkpoint_is_listed_with_the_next_one(run: Run) -> None:
    Story(run).started().tell(entry(1, share(1)), entry(3, share(2), share(3)))
    fold()

    newest = ledger("flights-1", 5).lines[0]

    assert newest.tokens == ["part-2-0", "part-3-0"]


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_entries_after_the_restored_checkpoint_are_void_and_do_not_wait(
    run: Run, in_one_batch: bool
) -> None:
    story = Story(run).started().tell(entry(1, share(1)), entry(2, share(2)), entry(3, share(3)))
    if not in_one_batch:
        fold()
    story.tell(LedgerBegun(lineage=[(RunId("flights-1"), CheckpointId(1))], start=None))
    story.tell(entry(4, share(4)))
    fold()

    found = ledger("flights-1", 5)

    assert [line.checkpoint_id for line in found.lines if line.is_void] == [3, 2]
    assert [line.checkpoint_id for line in found.waiting] == [1, 4]


def test_a_commit_covers_the_checkpoints_before_it(run: Run) -> None:
    story = Story(run).started().triggered()
    story.tell(entry(1, share(1)), entry(2, share(2)))
    story.completed()
    story.completed()
    fold()

    assert ledger("flights-1", 5).waiting == []


def test_only_the_newest_entries_are_kept_as_rows(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector, "ROWS_KEPT", 3)
    story = Story(run).started()
    for number in range(1, 6):
        story.tell(entry(number, share(number)))
        fold()
    kept = sorted(LedgerRow.objects.values_list("checkpoint_id", flat=True))
    rebuild(Run.objects.get(pk=run.pk))

    assert kept == [3, 4, 5]
    assert sorted(LedgerRow.objects.values_list("checkpoint_id", flat=True)) == [3, 4, 5]


def test_an_admin_starts_an_audit_and_an_operator_sees_it(run: Run, admin: Client) -> None:
    answer = admin.post(reverse("guarantee-audit", args=[NAME]), follow=True)

    assert answer.redirect_chain == [(reverse("guarantee", args=[NAME]), 302)]
    assert "you may leave, and find it here again" in answer.content.decode()
    page = words_of(signed_in(operator_user()))
    assert "An audit is under way: it waits for the worker" in page
    assert Audit.objects.get().requester == "ada"


def test_the_page_tells_an_operator_that_an_audit_needs_the_admin_role(
    run: Run, operator: Client, admin: Client
) -> None:
    told = "Starting one needs the admin role."

    assert told in words_of(operator)
    assert told not in words_of(admin)
    pages = [each.get(reverse("guarantee", args=[NAME])) for each in (operator, admin)]
    assert ["start-audit" in page.content.decode() for page in pages] == [False, True]


def test_the_page_says_that_a_pipeline_has_no_run_yet(admin: Client) -> None:
    Pipeline.objects.create(name=NAME, flow="flight_delays", created_at=timezone.now())

    answer = admin.post(reverse("guarantee-audit", args=[NAME]), follow=True)

    assert "flights has no run yet, so there is nothing to audit." in answer.content.decode()
    assert "No run has been started yet." in answer.content.decode()


def test_an_unknown_pipeline_is_not_found(admin: Client) -> None:
    for name in ("guarantee", "guarantee-regions"):
        assert admin.get(reverse(name, args=["nothing"])).status_code == 404
    assert admin.post(reverse("guarantee-audit", args=["nothing"])).status_code == 404


def test_a_proof_is_shown_with_its_moment_and_its_parts(run: Run, operator: Client) -> None:
    ended(run, PROVEN)

    page = words_of(operator)

    for shown in (
        "The output matches the ledger",
        "in run 1 up to checkpoint 7",
        "checkpoint 7 of run run-1",
        "digested",
        "as recorded",
    ):
        assert shown in page


def test_the_page_claims_nothing_before_the_first_commit(run: Run, operator: Client) -> None:
    ended(run, PROVEN, committed_checkpoint_id=None)

    page = words_of(operator)

    assert "Nothing had been committed when the audit began" in page
    assert "The output matches the ledger" not in page


def test_a_difference_is_shown_with_checkpoint_part_and_digests(run: Run, operator: Client) -> None:
    ended(run, NOT_PROVEN)

    page = words_of(operator)

    for shown in (
        "The output does not match the ledger",
        "70 rows were given, and as many are there, but not the same ones.",
        "In part-7.parquet.",
        "Given 70 rows, digest 00000000000000aa;",
        "found 70, digest 00000000000000bb.",
    ):
        assert shown in page


def test_names_of_sinks_and_files_are_escaped(run: Run, operator: Client) -> None:
    bad = "<script>alert(1)</script>"
    Story(run).started().tell(entry(1, share(1, token=bad)))
    fold()
    difference = msgspec.structs.replace(NOT_PROVEN.difference, what=bad, part=bad)  # type: ignore[type-var]
    ended(run, msgspec.structs.replace(NOT_PROVEN, difference=difference))

    page = operator.get(reverse("guarantee", args=[NAME])).content.decode()

    assert bad not in page
    assert "&lt;script&gt;alert(1)" in page


def ended(run: Run, found: SinkReport, **changes: object) -> None:
    report = msgspec.structs.replace(report_of(found), **changes)  # type: ignore[arg-type]
    now = timezone.now()
    Audit.objects.create(
        run=run,
        requester="ada",
        created_at=now,
        started_at=now,
        moved_at=now,
        ended_at=now,
        report=msgspec.to_builtins(report),
        sentences=["delays: proven."],
    )


def entry(number: int, *outputs: SinkOutput) -> LedgerAdvanced:
    """Returns a ledger entry with ten records a checkpoint."""
    split = SplitRange(split="0", first=10 * number - 10, end=10 * number)
    return LedgerAdvanced(
        entry=LedgerEntry(
            run_id=RunId("flights-1"),
            checkpoint_id=CheckpointId(number),
            records_read=10 * number,
            inputs=[SourceInput(source=Uid("flights"), records=10, splits=[split])],
            outputs=list(outputs),
        )
    )


def share(
    number: int, *, subtask: int = 0, digest: str = "0" * 15 + "5", token: str = ""
) -> SinkOutput:
    """Returns a share of five rows."""
    name = token or f"part-{number}-{subtask}"
    of_one = OutputShare(checkpoint_id=CheckpointId(number), rows=5, digest=digest, tokens=[name])
    return SinkOutput(sink=Uid("delays"), subtask=subtask, share=of_one)


def held(**timeouts_ms: int) -> None:
    Run.objects.update(transaction_timeouts_ms=timeouts_ms)


def fold() -> None:
    Projector().run_once()


def words_of(client: Client) -> str:
    """Returns the words of the page, and checks that its regions give the same."""
    page = client.get(reverse("guarantee", args=[NAME])).content.decode()
    regions = client.get(reverse("guarantee-regions", args=[NAME]))
    assert regions.status_code == 200
    return re.sub(r" (?=[,.:;])", "", words_in(page))
