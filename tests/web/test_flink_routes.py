"""Flink's addresses, each answered or absent on purpose, and the bodies that a Flink sent.

`flink_routes.txt` lists those of Flink 2.3.0 about jobs, checkpoints, metrics, task managers and
jars. `flink_bodies/*.json` has the bodies by route, as a Flink 2.3.0 with one running job sent
them. A body does not show which fields may be missing or of another type. `flink_shapes` does, and
has to fit the bodies, too.
"""

import json
import re
from pathlib import Path

import pytest
from django.urls import URLPattern, resolve

from ftdash.api.flink import urls
from tests.web.flink_expectations import SHAPES, differences

HERE = Path(__file__).parent
ROUTES = (HERE / "flink_routes.txt").read_text().split()
BODIES: dict[str, object] = {
    route: body
    for file in sorted((HERE / "flink_bodies").glob("*.json"))
    for route, body in json.loads(file.read_text()).items()
}
DOCS = HERE.parents[1] / "docs" / "how-to" / "flink-tools.md"


def test_the_absent_routes_are_those_that_the_documentation_lists() -> None:
    listed = absent_on_purpose()

    assert {route for route in ROUTES if not is_answered(route)} == {
        route for route in ROUTES if any(names(each, route) for each in listed)
    }
    for each in listed:
        assert any(names(each, route) for route in ROUTES), f"{each} is no address of Flink's"


def test_every_address_of_ours_is_one_of_flinks() -> None:
    ours = {
        re.sub(r"<[^>]*>", ":", str(pattern.pattern))
        for pattern in urls.urlpatterns
        if isinstance(pattern, URLPattern) and not str(pattern.name).startswith("no-")
    }

    assert ours <= {nameless(route) for route in ROUTES}


@pytest.mark.parametrize("route", BODIES)
def test_recorded_bodies_of_flink_have_the_fields_required_of_ours(route: str) -> None:
    assert differences(BODIES[route], SHAPES[route], route) == []


def absent_on_purpose() -> list[str]:
    """Returns the texts between backticks before the colon of each item."""
    section = DOCS.read_text().split("These addresses answer 404, on purpose:")[1]
    items = section.split("What is answered")[0].split("\n- ")[1:]
    named = [re.findall("`([^`]+)`", item.split(": ")[0]) for item in items]
    return [each.removeprefix("DELETE /") for group in named for each in group]


def names(listed: str, route: str) -> bool:
    """Returns True if `listed` covers the route.

    `a/...` covers `a` and everything below; a single word covers every address that contains it.
    """
    if listed.endswith("/..."):
        stem = nameless(listed.removesuffix("/..."))
        return f"{nameless(route)}/".startswith(f"{stem}/")
    if "/" in listed:
        return nameless(route) == nameless(listed)
    return listed in route.split("/")


def nameless(route: str) -> str:
    return re.sub(r":\w+", ":", route)


def is_answered(route: str) -> bool:
    found = str(resolve(f"/v1/{re.sub(r':', '', route)}").url_name)
    return found != "nothing" and not found.startswith("no-")
