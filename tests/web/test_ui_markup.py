"""Every page, given names and texts that are markup: they stay text, and no script in them runs."""

import html
import json
import re

import msgspec
import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, get_resolver, reverse
from django.utils import timezone

from ftdash.alerts import evaluation
from ftdash.alerts.models import AlertRule, Watched
from ftdash.flink_clusters.models import (
    FlinkCheckpoint,
    FlinkCheckpointStatus,
    FlinkCluster,
    FlinkEvent,
    FlinkEventKind,
    FlinkJob,
)
from ftdash.gameday.models import GameDay
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline, Run, Upgrade, UpgradeStep
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import TakeSavepoint, UpgradePipeline
from pipelines.domain.events import CheckpointFailed, Event
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import CheckpointKind
from tests.web.addresses import all_patterns
from tests.web.filled_states import ended_game_days
from tests.web.journals import Story, new_request, new_run, quarantined
from tests.web.people import operator_user

pytestmark = pytest.mark.usefixtures("site")

MARKUP = "'\"><script>alert(1)</script>{{ 7 }}"
JID = "3f" * 16
TOLD = ("join", "gone", "killed")
"""Words of a story chosen by operators, failures and machines; the test adds markup to each."""

DATA = r'type="application/json"'  # a block that no browser runs
INLINE = re.compile(
    rf"<script(?![^>]*(?:\bsrc=|{DATA}))|<style|\sstyle=|\son[a-z]+=|javascript:", re.IGNORECASE
)
CHART = re.compile(r'<div id="values-[a-z-]+" hidden>(.*?)</div>', re.DOTALL)
SHOWING = {
    "alerts",
    "checkpoint",
    "checkpoints",
    "event-log",
    "fleet",
    "flink-checkpoint",
    "flink-cluster",
    "flink-job",
    "game-days",
    "pipeline",
    "pipeline-metrics",
    "recovery",
    "savepoint",
    "savepoints",
    "settings",
}
"""Pages that show some of it."""


def test_every_preformatted_block_can_be_scrolled_by_keyboard() -> None:
    """No other element scrolls by itself; see `unreachable` in `keyboard_walk`."""
    templates = (settings.BASE_DIR / "templates").rglob("*.html")
    opened = {tag for each in templates for tag in re.findall(r"<pre\b[^>]*>", each.read_text())}

    assert opened
    assert [tag for tag in opened if 'tabindex="0"' not in tag] == []


@pytest.mark.slow
def test_names_labels_and_exceptions_are_escaped_on_every_page(admin: Client) -> None:
    told_in_markup()

    pages = every_page(admin)

    raw = [name for name, page in pages.items() if "<script>alert" in page.content.decode()]
    assert raw == []
    shown = {name for name, page in pages.items() if html.escape(MARKUP) in page.content.decode()}
    assert shown >= SHOWING


@pytest.mark.slow
def test_markup_stays_text_in_the_charts_of_plotly(operator: Client) -> None:
    """Plotly interprets a few tags in texts, once the browser has unescaped the page."""
    told_in_markup()
    answer = operator.get(reverse("checkpoint", args=["flights", 1]))

    charts = [html.unescape(found) for found in CHART.findall(answer.content.decode())]

    assert charts
    assert "&lt;script>alert" in "".join(charts)
    assert "<script>alert" not in "".join(charts)


@pytest.mark.slow
def test_no_page_contains_or_allows_an_inline_script(admin: Client) -> None:
    told_in_markup()

    for name, page in every_page(admin).items():
        rules = dict(
            rule.split(" ", 1) for rule in page["Content-Security-Policy"].split("; ") if rule
        )
        assert (rules["script-src"], rules["default-src"]) == ("'self'", "'none'"), name
        assert INLINE.findall(page.content.decode()) == [], name


class MarkedUp(Story):
    """A story whose words are markup."""

    def tell(self, *events: Event) -> "MarkedUp":
        super().tell(*map(marked_up, events))
        return self


def marked_up(event: Event) -> Event:
    words = msgspec.json.encode(event).decode()
    for told in TOLD:
        words = words.replace(told, told + json.dumps(MARKUP)[1:-1])
    return msgspec.json.decode(words, type=type(event))


def told_in_markup() -> None:
    """Makes a run with everything that pages show."""
    run = new_run()
    Pipeline.objects.update(parameters={"data": MARKUP})
    path = run_directory(run).path / "savepoint"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    command = TakeSavepoint(label=MARKUP)
    asked = new_request(run, command, requester=MARKUP, reason=MARKUP)
    story = MarkedUp(run).started().sampled().completed()
    story.completed(CheckpointKind.SAVEPOINT, asked.request_id, path=str(path)).slot_killed()
    story.wait(1_000).sampled().completed().tell(quarantined(7, count=1, error="gone"))
    story.answered(asked, str(path)).triggered().tell(
        CheckpointFailed(
            checkpoint_id=story.next_checkpoint,
            reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
            message="gone",
        )
    )
    Projector().run_once()
    operator_user(MARKUP)
    rule = AlertRule.objects.create(
        name=MARKUP,
        watched=Watched.FAILED_IN_ROW,
        fire_above=0,
        fire_after_s=0,
        clear_below=0,
        clear_after_s=0,
    )
    evaluation.fire(rule, run.pipeline, 1.0, timezone.now(), fire_above=0.0)
    ended_game_days(run)
    GameDay.objects.update(requester=MARKUP, reason=MARKUP)
    upgraded(run)
    flink_cluster()


def flink_cluster() -> None:
    """Makes a cluster that describes itself in markup, because others choose these texts too."""
    now = timezone.now()
    told = {"address": MARKUP, "created_by": MARKUP, "flink_version": MARKUP, "problem": MARKUP}
    cluster = FlinkCluster.objects.create(name="flights", created_at=now, due_at=now, **told)
    job = FlinkJob.objects.create(
        cluster=cluster, jid=JID, name=MARKUP, state="RUNNING", started_at=now, listed_at=now
    )
    FlinkCheckpoint.objects.create(
        job=job,
        checkpoint_id=1,
        status=FlinkCheckpointStatus.FAILED,
        is_savepoint=True,
        external_path=MARKUP,
        failure=MARKUP,
        triggered_at=now,
        said_at=now,
    )
    told = {"title": MARKUP, "text": MARKUP, "place": MARKUP}
    FlinkEvent.objects.create(job=job, kind=FlinkEventKind.EXCEPTION, at=now, **told)


def upgraded(run: Run) -> None:
    now = timezone.now()
    code = ShippedCode(package=MARKUP, version=MARKUP, file=MARKUP, sha256=MARKUP)
    told = {"requester": MARKUP, "reason": MARKUP, "message": MARKUP}
    over = {"at": now.isoformat(), "ended_at": now.isoformat(), "text": MARKUP, "trace": MARKUP}
    Upgrade.objects.create(
        request=new_request(run, UpgradePipeline(code=code), request_id="upgraded", **told),
        pipeline=run.pipeline,
        old_run=run,
        new_code=msgspec.to_builtins(code),
        checkpoints=1,
        timeout_ms=1,
        step_at=now,
        steps=[{"step": UpgradeStep.CHECKING.value, **over}],
        savepoint=MARKUP,
        ended_at=now,
    )


def every_page(client: Client) -> dict[str, HttpResponse]:
    """Returns the pages that answer with HTML, by the name in the table of addresses."""
    found = {}
    for pattern in all_patterns(get_resolver().url_patterns):
        answer = client.get(address_of(pattern))
        if answer.status_code == 200 and answer["Content-Type"].startswith("text/html"):
            found[str(pattern.name)] = answer
    return found


def address_of(pattern: URLPattern) -> str:
    values = {
        "name": "flights",
        "action": "make-rule" if pattern.name == "settings-action" else "savepoint",
        "checkpoint_id": 1,
        "jid": JID,
        "key": GameDay.objects.latest("pk").pk,
        "pk": 1,
        "provider_id": "company",
        "savepoint_key": "flights-1-2",
        "request_id": "upgraded",
        "path": "index.html",  # of the documentation, which is not built here
    }
    wanted = pattern.pattern.converters
    return reverse(str(pattern.name), kwargs={name: values[name] for name in wanted})
