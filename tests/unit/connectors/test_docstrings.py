"""The connector reference has every connector and says what each of its parameters means."""

import inspect
import re
from pathlib import Path

import pytest

from pipelines import connectors

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "connectors.md"
CLASSES = [name for name in connectors.__all__ if inspect.isclass(getattr(connectors, name))]
OURS = {"applies_changes"}
"""Set by the stream, not by authors."""

WITHOUT = {"BlackHole", "Collect", "GrowingSource"}


@pytest.mark.parametrize("name", connectors.__all__)
def test_the_reference_page_lists_every_connector(name: str) -> None:
    assert re.search(
        rf"^::: pipelines\.connectors\.[\w.]+\.{name}$|`{name}`", PAGE.read_text(), re.M
    )


@pytest.mark.parametrize("name", sorted(set(CLASSES) - WITHOUT))
def test_a_connector_documents_each_of_its_parameters(name: str) -> None:
    connector = getattr(connectors, name)
    parameters = set(inspect.signature(connector).parameters) - OURS

    documented = re.findall(r"^    (\w+): \S", inspect.getdoc(connector) or "", re.MULTILINE)

    assert set(documented) == parameters
    assert len(documented) == len(parameters)
