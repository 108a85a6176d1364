"""The lab's page: all users read it, some may ask for a lab, and what is refused."""

import json
from html import unescape

import msgspec
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.lab import services
from ftdash.lab.models import Lab, LabState
from ftdash.ui.lab.page import lab_control, lab_latency
from pipelines.lab.options import LabOptions
from pipelines.lab.report import LabReport
from tests.unit.lab.reports import FAULTED, mode, report
from tests.web.journals import new_run
from tests.web.people import admin_user, signed_in

pytestmark = pytest.mark.usefixtures("site")

EXACT = mode("exactly-once")
LOSING = msgspec.structs.replace(
    mode("at-most-once"),
    promise="at-most-once",
    faulted=msgspec.structs.replace(FAULTED, lost=1_234),
)
REPORT = report(LOSING, EXACT, mode("acked", acker_ids=30_000))
ASKED = {**msgspec.to_builtins(LabOptions()), "reason": "to compare"}


def test_before_the_first_lab_the_page_says_what_one_is_and_takes(operator: Client) -> None:
    page = read(operator)

    assert "One page-view count in every mode: the same input, with slots killed" in page
    assert "No lab yet" in page
    assert "A lab takes about a minute and uses two processor cores." in page
    assert "Running one needs the admin role." in page
    assert "Nothing was measured yet." in page


def test_an_operator_reads_what_each_mode_did(operator: Client) -> None:
    stored(REPORT)

    page = read(operator)

    assert "Every mode kept its guarantee" in page
    assert '<td class="number strong">1,234</td>' in page
    assert "took 3.000 acks a record (expected: 1 + 2)" in page
    assert "a checkpoint took 8 barriers" in page
    assert 'href="/lab/start/"' not in page
    assert "The newest lab failed" not in page


def test_a_broken_promise_is_shown_at_its_mode(operator: Client) -> None:
    stored(report(mode("exactly-once", broken=["It promises to lose nothing, and 3 are lost."])))

    page = read(operator)

    assert "A promise was broken" in page
    assert "It promises to lose nothing, and 3 are lost." in page


def test_an_older_lab_can_be_chosen_and_is_shown_with_its_seed(operator: Client) -> None:
    older = stored(msgspec.structs.replace(REPORT, options=LabOptions(seed=4_711)))
    stored(REPORT)

    assert "seed <b>4711</b>" not in read(operator)
    assert "seed <b>4711</b>" in read(operator, f"?lab={older}")
    assert operator.get(reverse("lab") + "?lab=999").status_code == 404


def test_a_lab_under_way_is_shown_with_its_progress(operator: Client) -> None:
    services.start_lab(LabOptions(), requester="ada", reason="to compare")
    Lab.objects.update(progress="acked: undisturbed, at full speed")

    for name in ("lab", "lab-regions"):
        page = operator.get(reverse(name)).content.decode()
        assert "acked: undisturbed, at full speed" in page
        assert "by ada" in page


def test_a_lab_that_could_not_be_run_says_why(operator: Client) -> None:
    services.start_lab(LabOptions(), requester="ada", reason="to compare")
    Lab.objects.update(state=LabState.FAILED, message="The disk is full.")

    page = read(operator)

    assert "The newest lab failed." in page
    assert "The disk is full." in page


def test_an_admin_asks_for_a_lab(admin: Client) -> None:
    assert 'href="/lab/start/"' in read(admin)
    assert 'name="records"' in admin.get(reverse("start-lab")).content.decode()

    answer = admin.post(reverse("start-lab"), {**ASKED, "seed": 9})

    assert answer.status_code == 302
    assert answer["Location"] == reverse("lab")
    row = Lab.objects.get()
    assert msgspec.convert(row.options, LabOptions) == LabOptions(seed=9)
    assert (row.requested_by, row.reason) == ("ada", "to compare")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parallelism": "99"}, "--parallelism is 99; give a number from 1 to 16."),
        ({"modes": []}, "This field is required."),
        ({"reason": ""}, "This field is required."),
    ],
)
def test_a_refusal_is_shown_in_the_form_and_stores_nothing(
    admin: Client, change: object, told: str
) -> None:
    assert isinstance(change, dict)
    answer = admin.post(reverse("start-lab"), {**ASKED, **change, "seed": "77"})

    assert answer.status_code == 422
    assert told in unescape(answer.content.decode())
    assert 'value="77"' in answer.content.decode()
    assert not Lab.objects.exists()


def test_a_second_lab_is_refused_while_one_is_under_way(admin: Client) -> None:
    admin.post(reverse("start-lab"), ASKED)

    answer = admin.post(reverse("start-lab"), ASKED)

    assert answer.status_code == 422
    assert "A lab is under way" in answer.content.decode()
    assert Lab.objects.count() == 1


def test_an_operator_may_not_ask_for_a_lab(operator: Client) -> None:
    assert operator.get(reverse("start-lab")).status_code == 403
    assert operator.post(reverse("start-lab"), ASKED).status_code == 403
    assert not Lab.objects.exists()


def test_without_the_csrf_token_no_lab_is_stored() -> None:
    client = signed_in(admin_user(), enforce_csrf_checks=True)

    assert client.post(reverse("start-lab"), ASKED).status_code == 403
    assert not Lab.objects.exists()


def test_every_page_links_to_the_lab(operator: Client) -> None:
    new_run()
    names = ("fleet", "incidents", "alerts", "lab", "game-days", "event-log", "settings")
    addresses = [*map(reverse, names), "/pipelines/flights/", "/nowhere/"]

    pages = [operator.get(address).content.decode() for address in addresses]

    assert [f'href="{reverse("lab")}"' in page for page in pages] == [True] * len(addresses)


def test_the_figures_draw_the_counts_and_leave_out_modes_without_acks() -> None:
    barriers, acks = traces(lab_control(REPORT))
    p50, p99 = traces(lab_latency(REPORT))

    assert barriers["y"] == ["at-most-once", "exactly-once", "acked"]
    assert barriers["x"] == [0.004] * 3
    assert (acks["y"], acks["x"]) == (["acked"], [3.0])
    assert p50["x"] == [210.0] * 3
    assert p99["x"] == [1_050.0] * 3


def test_without_undisturbed_runs_no_cost_is_drawn() -> None:
    without = report(msgspec.structs.replace(EXACT, cost=None))

    assert lab_control(without) is None
    assert lab_control(None) is None
    assert lab_latency(None) is None


def traces(figure: object) -> list[dict[str, object]]:
    assert isinstance(figure, dict)
    found: list[dict[str, object]] = json.loads(json.dumps(figure))["data"]
    return found


def stored(kept: LabReport) -> int:
    now = timezone.now()
    row = Lab.objects.create(
        options=msgspec.to_builtins(kept.options),
        requested_by="ada",
        reason="to compare",
        state=LabState.ENDED,
        asked_at=now,
        ended_at=now,
        report=msgspec.to_builtins(kept),
    )
    return row.pk


def read(client: Client, query: str = "") -> str:
    answer = client.get(reverse("lab") + query)
    assert answer.status_code == 200
    return unescape(answer.content.decode())
