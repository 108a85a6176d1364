"""The pages that end a run, take a savepoint, or change the settings of a run."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.jobs.models import Request, Run
from ftdash.projection.projector import Projector
from pipelines.domain.commands import RequestKind
from pipelines.domain.settings.parsing import DEFINITIONS
from tests.web.journals import Story, new_run
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")

CHECKPOINTING = "execution.checkpointing."
WHY = {"reason": "upgrade"}
NAMED = {**WHY, "confirmation": "flights"}
NATIVE = {"savepoint_format": "NATIVE", "label": "before 1.8"}


@pytest.fixture(autouse=True)
def running(site: Path) -> None:
    settings = {"execution.checkpointing.timeout": "3 min"}
    Story(new_run(settings=settings)).started().completed().sampled(since=2_500)
    Projector().run_once()


@pytest.mark.parametrize(
    ("action", "fields", "kind", "parameters"),
    [
        ("savepoint", WHY, RequestKind.SAVEPOINT, {"type": "CANONICAL"}),
        (
            "savepoint",
            WHY | NATIVE,
            RequestKind.SAVEPOINT,
            {"type": "NATIVE", "label": "before 1.8"},
        ),
        ("stop", WHY, RequestKind.STOP_WITH_SAVEPOINT, {"type": "CANONICAL"}),
        (
            "stop",
            NAMED | NATIVE | {"drain": "on"},
            RequestKind.STOP_WITH_SAVEPOINT,
            {"type": "NATIVE", "label": "before 1.8", "drain": "true"},
        ),
        ("cancel", NAMED, RequestKind.CANCEL, {}),
        (
            "cancel",
            NAMED | NATIVE | {"with_savepoint": "on"},
            RequestKind.CANCEL_WITH_SAVEPOINT,
            {"type": "NATIVE", "label": "before 1.8"},
        ),
        (
            "change",
            WHY | {CHECKPOINTING + "interval": "9 s", CHECKPOINTING + "min-pause": ""},
            RequestKind.CHANGE_SETTINGS,
            {"execution.checkpointing.interval": "9 s"},
        ),
    ],
)
def test_the_request_has_the_options_that_were_chosen(
    admin: Client, action: str, fields: dict[str, str], kind: RequestKind, parameters: Any
) -> None:
    admin.post(address(action), fields)

    (stored,) = Request.objects.all()
    assert (stored.kind, stored.command.parameters, stored.reason) == (kind, parameters, "upgrade")
    assert stored.requester == "ada"


@pytest.mark.parametrize("confirmation", ["", "flihgts"])
def test_a_drain_needs_the_name_typed_and_warns_of_what_it_fires(
    admin: Client, confirmation: str
) -> None:
    before = words(admin.get(address("stop")))

    answer = admin.post(address("stop"), {**WHY, "drain": "on", "confirmation": confirmation})

    assert answer.status_code == 422
    assert not Request.objects.exists()
    assert "The name of this pipeline is flights." in words(answer)
    assert 'class="consequence is-destructive"' in answer.content.decode()
    assert 'class="consequence"' in admin.get(address("stop")).content.decode()
    for said in ("Fired windows cannot be undone", "drops every further record as late"):
        assert said in before


def test_a_drain_says_which_windows_fire_before_their_end(admin: Client) -> None:
    Run.objects.update(watermark_ms=1_357_000_000_000)

    page = words(admin.get(address("stop")))

    assert "also those that end after the watermark of 2013-01-01 00:26:40 UTC" in page


def test_the_cancel_form_says_what_a_savepoint_beforehand_would_keep(admin: Client) -> None:
    page = words(admin.get(address("cancel")))

    not_kept = r"about 2,500 records read since checkpoint 1 are not kept"
    assert re.search(rf"{not_kept}\. With a savepoint first they are", page)


def test_the_savepoint_form_explains_the_formats(admin: Client) -> None:
    page = admin.get(address("savepoint")).content.decode()

    assert '<option value="CANONICAL" selected>' in page
    assert "Native is faster to write and restore" in page


def test_the_change_form_shows_the_values_in_force_and_requires_none(admin: Client) -> None:
    Run.objects.update(changed_settings={"execution.checkpointing.min-pause": "2 s"})
    changed = words(admin.get(address("change")))
    Run.objects.update(changed_settings={})

    page = admin.get(address("change"))

    fields = re.findall(r'<input[^>]*name="([a-z_.-]+)"[^>]*>', page.content.decode())
    live = [each.key for each in DEFINITIONS if each.changes_live]
    inputs = re.findall(r'<input[^>]*name="execution\.[^>]*>', page.content.decode())
    of_every_page = ("csrfmiddlewaretoken", "q")  # q belongs to the palette
    assert [field for field in fields if field not in of_every_page] == ["reason", *live]
    assert len(inputs) == len(live)
    assert [each for each in inputs if " value=" in each or " required" in each] == []
    assert "Min pause, now 2 s" in changed
    assert "Timeout, now 3 min" in words(page)
    assert "Interval, now 1 s by default" in words(page)
    assert re.search(r"A failure now would replay about 2,500 records read since", words(page))


@pytest.mark.parametrize(
    ("fields", "said", "stands"),
    [
        ({}, "Name a setting to change", "errorlist nonfield"),
        (
            {CHECKPOINTING + "interval": "soon", CHECKPOINTING + "timeout": "9 s"},
            "The setting execution.checkpointing.interval cannot be 'soon'",
            'class="field has-error"',
        ),
        (
            {CHECKPOINTING + "min-pause": "2 s"},
            "needs checkpoints one after the other",
            "errorlist nonfield",
        ),
    ],
)
def test_an_impossible_change_is_refused_with_the_engines_own_sentence(
    admin: Client, fields: dict[str, str], said: str, stands: str
) -> None:
    Run.objects.update(settings={"execution.checkpointing.max-concurrent-checkpoints": "2"})

    answer = admin.post(address("change"), WHY | fields)

    assert answer.status_code == 422
    assert said in words(answer)
    assert stands in answer.content.decode()
    for typed in (*WHY.values(), *fields.values()):
        assert f'value="{typed}"' in answer.content.decode()
    assert not Request.objects.exists()


def address(action: str) -> str:
    return reverse("act", args=["flights", action])


def words(answer: Any) -> str:
    return words_in(answer.content.decode())
