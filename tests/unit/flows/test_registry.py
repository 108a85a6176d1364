"""Flows by name: parameters are completed, and anything unknown is refused with the closest."""

import pytest

from pipelines.domain.errors import Rejected
from pipelines.flows.registry import FLOWS, flow

SHIPPED = [name for name, module in FLOWS.items() if module.startswith("pipelines.flows.")]
"""Tests of whole runs register flows of their own."""


@pytest.mark.parametrize("name", SHIPPED)
def test_every_flow_bears_its_name_and_explains_its_parameters(name: str) -> None:
    found = flow(name)

    assert found.name == name
    assert found.summary
    assert all(parameter.help for parameter in found.parameters)


def test_defaults_complete_what_was_given() -> None:
    completed = flow("page_view_count").complete({"data": "events"})

    assert completed == {"data": "events", "key": "app_id", "repeat": "1"}


def test_an_unknown_parameter_is_refused_with_the_closest_known_one() -> None:
    with pytest.raises(
        Rejected, match="no parameter 'dat' of page_view_count; did you mean 'data'"
    ):
        flow("page_view_count").build({"dat": "events"})


def test_a_missing_parameter_is_refused_by_name() -> None:
    with pytest.raises(Rejected, match="page_view_count needs the parameter 'data'"):
        flow("page_view_count").build({})


def test_an_unknown_flow_is_refused_with_the_closest_known_one() -> None:
    with pytest.raises(Rejected, match="no pipeline 'flight_delay' here; did you mean"):
        flow("flight_delay")
