"""What an author's code reads in a driver that supervision has started, and in its slots."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from django.conf import LazySettings
from django.utils import timezone

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline
from ftdash.supervision import launcher
from pipelines.bus.announce import STREAM
from pipelines.bus.journal import last_event
from pipelines.domain.events import RunEnded
from pipelines.domain.status import JobStatus
from tests.planted_variables import OWN, WORD, plant, unexpected
from tests.polling import wait_until
from tests.web.journals import new_run

if TYPE_CHECKING:
    from tests.brokers.redis_broker import RedisBroker

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

STEP_S = 60.0
SET_BY_THIS_DRIVER = {"CELERY_SKIP_CHECKS", "DJANGO_SETTINGS_MODULE"}
"""Its slots inherit these variables: modules that this driver imports set them, and that of Spark
imports none of those."""


def test_code_in_a_driver_and_in_its_slots_reads_allowed_variables_only(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: LazySettings,
    redis_server: "RedisBroker",
) -> None:
    plant(monkeypatch, settings)
    settings.JOBS_ROOT = tmp_path / "jobs"
    settings.DRIVER_COMMAND = [sys.executable, "-m", "tests.processes.supervised_driver"]
    settings.REDIS_URL = redis_server.url
    notes, output = tmp_path / "notes", tmp_path / "output"
    notes.mkdir()
    Pipeline.objects.create(name="noting", flow="environments", created_at=timezone.now())
    run = new_run("noting", parameters={"notes": str(notes), "output": str(output)})
    directory = run_directory(run)
    directory.path.mkdir(parents=True)

    driver = launcher.start_driver(run)
    wait_until(
        lambda: isinstance(last_event(directory.journal_file), RunEnded),
        within_s=STEP_S,
        otherwise=directory.driver_log.read_text,
    )

    ended = last_event(directory.journal_file)
    assert isinstance(ended, RunEnded)
    assert ended.status is JobStatus.FINISHED, ended.reason
    seen = {int(note.stem): json.loads(note.read_text()) for note in notes.iterdir()}
    assert unexpected(seen[driver.pid]["environ"].keys()) == set()
    assert len(seen) > 1, "a slot builds the pipeline too"
    for noted in seen.values():
        assert unexpected(noted["environ"].keys() | noted["now"].keys()) <= SET_BY_THIS_DRIVER
        assert noted["environ"][OWN] == noted["now"][OWN] == "an author's own"
        assert (WORD in str(noted), redis_server.url in str(noted)) == (False, False)
        assert noted["input"] == ""
    with redis.Redis.from_url(redis_server.url) as client:
        entries = client.xrange(STREAM)
    assert run.run_id.encode() in {fields[b"run_id"] for _, fields in entries}
