"""Runs the drill: one incident after the other, then healthy pipelines.

Django has to be loaded in the environment of a separate installation.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from django.utils import timezone

from bench.benchmark import Fields, progress
from bench.drill.incidents import CLICKS_MAX, INCIDENTS, Staging, nothing
from bench.drill.reading import Reader, reader
from bench.drill.staging import Installation, Staged, installation, running
from ftdash.incidents.models import Incident

LOOK_EVERY_S = 1.0
WELL = Staging(stage=nothing, said=(), steps=())
GRACE_S = 30.0
"""The time to wait for a cause beyond its limit, so that the report says how late it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`seconds` is None if no notice named the cause, `clicks` if the step was not found."""

    passed: bool = False
    seconds: float | None = None
    limit_s: float
    clicks: int | None = None
    is_sentence_right: bool = False
    is_action_right: bool = False
    said: str = ""
    action: str = ""


def drill(
    home: Path,
    chosen: Sequence[str],
    healthy_minutes: float,
    healthy_pipelines: int,
    pictures: Path | None,
) -> Fields:
    needs = {INCIDENTS[name].needs for name in chosen}
    outcomes: dict[str, Outcome] = {}
    raised: list[str] | None = None
    with installation(home, needs) as site, reader(site.address, site.admin) as person:
        for name in chosen:
            began_s = time.monotonic()
            outcomes[name] = _one(site, person, name, INCIDENTS[name], pictures)
            took_s = time.monotonic() - began_s
            progress(f"{name}: {_line(outcomes[name])} ({took_s:.0f} s in all)")
        if healthy_minutes:
            raised = _healthy(site, person, healthy_minutes, healthy_pipelines)
    seconds = [each.seconds for each in outcomes.values() if each.seconds is not None]
    clicks = [each.clicks for each in outcomes.values() if each.clicks is not None]
    over = [each.seconds - each.limit_s for each in outcomes.values() if each.seconds is not None]
    return {
        "incidents": len(outcomes),
        "passed": sum(each.passed for each in outcomes.values()),
        "seconds_max": max(seconds, default=None),
        "seconds_over_limit_max": round(max(over), 1) if over else None,
        "clicks_max": max(clicks, default=None),
        "by_incident": {name: asdict(each) for name, each in outcomes.items()},
        "healthy_minutes": healthy_minutes,
        "healthy_pipelines": healthy_pipelines if healthy_minutes else 0,
        "healthy_raised": None if raised is None else len(raised),
        "healthy_said": raised or [],
    }


def _one(
    site: Installation, person: Reader, name: str, incident: Staging, pictures: Path | None
) -> Outcome:
    try:
        with running(site, name, incident) as staged:
            staged.wait_runs()
            person.open_fleet()
            with incident.stage(staged) as began_s:
                return _read(person, staged, incident, began_s, pictures)
    except Exception as error:  # one incident's trouble is not another's
        return Outcome(limit_s=incident.limit_s, said=f"{type(error).__name__}: {error}")


def _read(
    person: Reader, staged: Staged, incident: Staging, began_s: float, pictures: Path | None
) -> Outcome:
    words = (*((staged.name,) if incident.is_of_pipeline else ()), *incident.said)
    named = person.named(words, incident.limit_s + GRACE_S)
    if named.at_s is None:
        return Outcome(limit_s=incident.limit_s, said=named.text)
    if pictures is not None:
        person.take_pictures(words, pictures, staged.name)
    seconds = round(named.at_s - began_s, 1)
    taken = person.take(words, incident)
    is_quick = seconds <= incident.limit_s
    is_near = taken.clicks is not None and taken.clicks <= CLICKS_MAX
    return Outcome(
        passed=is_quick and is_near,
        seconds=seconds,
        limit_s=incident.limit_s,
        clicks=taken.clicks,
        is_sentence_right=True,
        is_action_right=taken.clicks is not None,
        said=named.text,
        action=taken.text,
    )


def _healthy(site: Installation, person: Reader, minutes: float, pipelines: int) -> list[str]:
    """Returns the sentences on the fleet page while nothing was wrong, each once."""
    raised: dict[str, None] = {}
    with ExitStack() as stack:
        names = [f"healthy-{number + 1}" for number in range(pipelines)]
        all_staged = [stack.enter_context(running(site, name, WELL)) for name in names]
        for staged in all_staged:
            staged.wait_runs()
        person.open_fleet()
        progress(f"{pipelines} healthy pipelines run for {minutes:g} minutes")
        since, until_s = timezone.now(), time.monotonic() + 60 * minutes
        while time.monotonic() < until_s:
            raised |= dict.fromkeys(person.notices())
            time.sleep(LOOK_EVERY_S)
        opened = Incident.objects.filter(opened_at__gte=since)
        return [*raised, *(f"{row.pipeline.name}: {row.text}" for row in opened)]


def _line(outcome: Outcome) -> str:
    verdict = "passed" if outcome.passed else "NOT PASSED"
    took = f"{outcome.seconds} s, {outcome.clicks} clicks"
    return f"{verdict}, {took}. It said: {outcome.said} The step: {outcome.action}"
