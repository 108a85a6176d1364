"""The results of the command palette, as a part of any page.

A person types words. The palette finds everything with all of them in its name: places, pipelines
with their pages, checkpoints by number, and actions. Only people who may act find actions. Each
result is a link, and the server checks the right again at its address.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.actions.page import ACTIONS

RESULTS_MAX = 12
PIPELINES_MAX = 6
"""The most pipelines whose pages, checkpoints and actions are searched."""

PLACES = {
    "All pipelines": "fleet",
    "Incidents": "incidents",
    "Alerts": "alerts",
    "Events": "event-log",
    "Game days": "game-days",
    "Lab": "lab",
    "Settings": "settings",
    "Documentation": "documentation",
}
PAGES = {
    "": "pipeline",
    "checkpoints": "checkpoints",
    "failures and recovery": "recovery",
    "metrics": "pipeline-metrics",
    "planner": "pipeline-planner",
    "guarantee": "guarantee",
    "lineage": "lineage",
    "game day": "pipeline-game-days",
    "savepoints": "savepoints",
}


@dataclass(frozen=True, slots=True)
class Result:
    text: str
    kind: str  # what it leads to, in a word
    address: str


@require_GET
@never_cache
def palette(request: HttpRequest) -> HttpResponse:
    wanted = request.GET.get("q", "")[:200].casefold().split()
    may_act = request.user.has_perm("jobs.operate")
    return render(request, "palette/results.html", {"results": results(wanted, may_act=may_act)})


def results(wanted: list[str], *, may_act: bool) -> list[Result]:
    """Returns the best results first; without words, the places."""
    names = queries.pipeline_names() if wanted else []
    numbers = [int(word) for word in wanted if word.isdecimal() and len(word) < 19]
    words = [word for word in wanted if not word.isdecimal()]
    having = [name for name in names if not words or any(each in name.casefold() for each in words)]
    having.sort(key=lambda name: (-_hits(name, wanted), name))
    found = (
        *_having(wanted, _places(may_act)),
        *_of_pipelines(wanted, words, numbers, having[:PIPELINES_MAX], may_act),
    )
    return list(islice(found, RESULTS_MAX))


def _hits(name: str, wanted: list[str]) -> int:
    return sum(word in name.casefold() for word in wanted)


def _having(wanted: Iterable[str], found: Iterable[Result]) -> list[Result]:
    return [each for each in found if all(word in each.text.casefold() for word in wanted)]


def _places(may_act: bool) -> Iterator[Result]:
    for text, name in PLACES.items():
        yield Result(text, "page", reverse(name))
    if may_act:
        yield Result("Start a pipeline", "action", reverse("submit"))


def _of_pipelines(
    wanted: list[str], words: list[str], numbers: list[int], names: list[str], may_act: bool
) -> Iterator[Result]:
    """Yields pipelines, then the checkpoints of that number, then their pages, then actions."""
    yield from _having(wanted, (_page(name, "", "pipeline") for name in names))
    for number in numbers:
        for name in names:
            if all(word in f"{name} checkpoint".casefold() for word in words):
                yield from _checkpoint(name, number)
    for name in names:
        yield from _having(wanted, (_page(name, *each) for each in PAGES.items() if each[0]))
    for name in names if may_act else ():
        yield from _having(wanted, _actions(name))


def _page(name: str, label: str, address: str) -> Result:
    text = f"{name}: {label}" if label else name
    return Result(text, "page" if label else "pipeline", reverse(address, args=[name]))


def _checkpoint(name: str, number: int) -> Iterator[Result]:
    if checkpoint_queries.is_of_newest_run(name, number):
        address = reverse("checkpoint", args=[name, number])
        yield Result(f"{name}: checkpoint {number}", "checkpoint", address)


def _actions(name: str) -> Iterator[Result]:
    """The page of an action says if it is possible now, and what its consequence is."""
    for slug, form in ACTIONS.items():
        if form.is_button:
            yield Result(f"{name}: {form.button}", "action", reverse("act", args=[name, slug]))
