"""Pipelines of other packages: their start form, and the pages of a broken one."""

import json
import sys
from collections.abc import Iterator
from html import unescape
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from ftdash.jobs.models import Pipeline
from ftdash.jobs.validation import check_declared, check_startable
from pipelines.bus.journal import read_journal
from pipelines.bus.lease import Lease
from pipelines.domain.errors import Rejected
from pipelines.domain.events import FailureOccurred
from pipelines.domain.run import RunDirectory
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import VARIABLE
from pipelines.runtime.master.driving import drive
from tests.unit.runtime.points import RUN, spec_of

SHOP = """
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pipelines.connectors.in_process import BlackHole
from pipelines.stream import Environment, Secret, flow
from tests.processes.numbers import Numbers


@dataclass(frozen=True, kw_only=True)
class Parameters:
    token: Annotated[Secret, "of the price service"]
    orders: Annotated[int, "how many there are"] = 10
    is_verbose: bool = False


@flow
def shop(env: Environment, parameters: Parameters) -> None:
    "Counts orders."
    if parameters.is_verbose:
        {}["orders"]
    env.source(Numbers(parameters.orders), uid="orders").sink(BlackHole(), uid="nowhere")
"""
FIELDS = {"name": "shop", "parallelism": "1", "reason": "try it", "parameter-token": "env:TOKEN"}

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def shops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings) -> Iterator[None]:
    """Declares `shop`, and `broken`, which cannot be imported."""
    settings.JOBS_ROOT = tmp_path / "jobs"
    (tmp_path / "declared_shop.py").write_text(SHOP)
    (tmp_path / "broken_shop.py").write_text("import nothing_of_this_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(VARIABLE, "shop=declared_shop:shop,broken=broken_shop:shop")
    yield
    sys.modules.pop("declared_shop", None)


def test_the_start_form_is_derived_from_the_declared_class(admin: Client) -> None:
    page = admin.get(reverse("submit"), {"flow": "shop"}).content.decode()

    assert '<select name="parameter-is_verbose"' in page
    assert 'name="parameter-orders" value="10"' in page
    assert "of the price service (a secret: give the place that keeps it" in page


def test_a_broken_pipeline_shows_its_traceback_and_does_not_block_the_others(admin: Client) -> None:
    broken = admin.get(reverse("submit"), {"flow": "broken"})
    started = admin.post(reverse("submit") + "?flow=shop", FIELDS)

    page = unescape(broken.content.decode())
    assert broken.status_code == 200
    assert "The module broken_shop cannot be imported: ModuleNotFoundError: No module" in page
    assert 'broken_shop.py", line 1, in <module>' in page
    assert 'href="?flow=shop"' in page
    assert started.status_code == 302
    assert Pipeline.objects.get().flow == "shop"


def test_the_form_shows_the_traceback_if_building_the_pipeline_fails(
    admin: Client,
) -> None:
    answer = admin.post(reverse("submit") + "?flow=shop", FIELDS | {"parameter-is_verbose": "true"})

    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    assert "The pipeline shop cannot be built: KeyError: 'orders'." in page
    assert 'declared_shop.py", line 22, in shop' in page
    assert not Pipeline.objects.exists()


def test_a_secret_given_as_text_is_refused(admin: Client) -> None:
    fields = FIELDS | {"parameter-token": "hunter2"}

    answer = admin.post(reverse("submit") + "?flow=shop", fields)

    assert answer.status_code == 422
    assert "expected the place that keeps the secret" in unescape(answer.content.decode())
    assert not Pipeline.objects.exists()


def test_the_command_lists_every_pipeline_and_why_one_cannot_be_used() -> None:
    rows = {row["name"]: row for row in json.loads(told("--json"))}

    assert rows["shop"]["summary"] == "Counts orders."
    assert rows["broken"]["problem"].startswith("The module broken_shop cannot be imported")
    assert "page_views" in rows


def test_the_command_lists_the_parameters_of_a_pipeline() -> None:
    lines = told("declared_shop:shop").splitlines()

    assert lines == [
        "token  required  of the price service",
        "orders  default '10'  how many there are",
        "is_verbose  default 'false'  false | true",
    ]


def test_commands_print_one_sentence_and_then_the_traceback() -> None:
    with pytest.raises(CommandError) as of_listing:
        told("broken")
    with pytest.raises(CommandError) as of_start:
        call_command("pipeline", "submit", "shop", "--flow", "broken")

    for refusal in (of_listing, of_start):
        sentence, _, traceback = str(refusal.value).partition("\n\n")
        assert sentence.endswith("No module named 'nothing_of_this_name'.")
        assert 'broken_shop.py", line 1' in traceback


def test_programs_start_declared_pipelines_only() -> None:
    check_declared("shop")

    with pytest.raises(Rejected, match=r"no pipeline 'declared_shop:shop' here; declare it"):
        check_declared("declared_shop:shop")


def test_a_pipeline_reference_too_long_to_store_is_refused() -> None:
    with pytest.raises(Rejected, match=r"has 85 characters in its name, and may have 80; declare"):
        check_startable("x" * 80 + ":shop", 1, 128, {}, {})


def test_a_run_of_a_broken_pipeline_fails_with_the_traceback_in_its_journal(tmp_path: Path) -> None:
    spec = spec_of(pipeline="broken", parameters={}, settings={})
    directory = RunDirectory.of(tmp_path / "jobs", spec.pipeline, RUN)

    with Lease.acquire(directory) as lease:
        directory.spec_file.write_bytes(msgspec.json.encode(spec))
        status = drive(directory, lease, nowhere)

    envelopes, _ = read_journal(directory.journal_file, 0)
    (failure,) = [each.event for each in envelopes if isinstance(each.event, FailureOccurred)]
    assert status is JobStatus.FAILED
    assert failure.cause.startswith("The module broken_shop cannot be imported")
    assert 'broken_shop.py", line 1' in failure.detail


def told(*arguments: str) -> str:
    out = StringIO()
    call_command("flows", *arguments, stdout=out)
    return out.getvalue()


def nowhere(*_: object) -> None:
    raise AssertionError("nothing is started")
