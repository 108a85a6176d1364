"""Pipelines are found by declared name or by reference; an error says why one cannot be used."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.errors import BrokenCode, Rejected
from pipelines.flows.finding import VARIABLE, declared_flows, find_flow, installed_flows

SHOP = """
from pipelines.connectors.in_process import BlackHole
from pipelines.stream import Environment, flow
from tests.processes.numbers import Numbers

@flow
def shop(env: Environment) -> None:
    "Counts orders."
    env.source(Numbers(10), uid="orders").sink(BlackHole(), uid="nowhere")

not_a_pipeline = 1
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable folder `own_shop`, into which tests write modules."""
    folder = tmp_path / "own_shop"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "flow.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("own_shop")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", sorted(installed_flows()))
def test_every_flow_has_its_name_and_explains_its_parameters(name: str) -> None:
    found = find_flow(name)

    assert found.name == name
    assert found.summary
    assert all(parameter.help for parameter in found.parameters)


def test_the_shipped_pipelines_are_declared() -> None:
    assert {"flight_delays", "page_view_count", "page_views"} <= declared_flows().keys()


def test_a_reference_needs_no_declaration(package: Path) -> None:
    assert find_flow("own_shop.flow:shop").summary == "Counts orders."


def test_the_environment_declares_pipelines_with_and_without_a_name(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "orders=own_shop.flow:shop, own_shop.flow:shop")

    assert find_flow("orders") is find_flow("own_shop.flow:shop")
    assert "own_shop.flow:shop" in declared_flows()


def test_the_environment_overrides_installed_pipelines(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "page_views=own_shop.flow:shop")

    assert find_flow("page_views").name == "shop"


def test_an_installed_package_declares_by_an_entry_point(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = package.parent / "own_shop-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: own-shop\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[ftdash.pipelines]\nown = own_shop.flow:shop\n")
    monkeypatch.delenv(VARIABLE, raising=False)
    installed_flows.cache_clear()
    try:
        assert find_flow("own").name == "shop"
    finally:
        installed_flows.cache_clear()


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("own_shop.flwo:shop", "There is no module own_shop.flwo; install its package, or put its"),
        ("nowhere.flow:shop", "There is no module nowhere.flow; install"),
        ("own_shop.flow:sho", "There is no pipeline 'sho' in own_shop.flow; did you mean 'shop'?"),
        (
            "own_shop.flow:not_a_pipeline",
            "is no pipeline, it is of type int; declare one with @flow.",
        ),
        ("flight_delay", "There is no pipeline 'flight_delay' here; did you mean 'flight_delays'"),
    ],
)
def test_a_reference_to_no_pipeline_is_refused_in_a_sentence(
    package: Path, reference: str, sentence: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        find_flow(reference)

    assert sentence in str(refusal.value)
    assert not isinstance(refusal.value, BrokenCode)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("def flow(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("{}['orders']", "KeyError: 'orders'"),
    ],
)
def test_an_error_in_the_authors_module_is_reported_with_its_traceback(
    package: Path, code: str, said: str
) -> None:
    (package / "broken.py").write_text(code)

    with pytest.raises(BrokenCode) as refusal:
        find_flow("own_shop.broken:shop")

    assert "The module own_shop.broken cannot be imported: " in str(refusal.value)
    assert said in str(refusal.value)
    assert str(package / "broken.py") in refusal.value.traceback
    assert "/flows/finding.py" not in refusal.value.traceback, "only the author's frames"


def test_a_malformed_declaration_is_refused_only_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "shop=own_shop/flow.py")

    with pytest.raises(Rejected, match=r"declared as 'own_shop/flow.py'.* package.module:NAME"):
        find_flow("shop")
    assert find_flow("page_views").name == "page_views"


def test_defaults_complete_the_given_parameters() -> None:
    completed = find_flow("page_view_count").complete({"data": "events"})

    assert completed == {"data": "events", "key": "app_id", "repeat": "1"}


def test_an_unknown_parameter_is_refused_with_the_closest_known_one() -> None:
    with pytest.raises(
        Rejected, match="no parameter 'dat' of page_view_count; did you mean 'data'"
    ):
        find_flow("page_view_count").build({"dat": "events"})


def test_a_missing_parameter_is_refused_by_name() -> None:
    with pytest.raises(Rejected, match="page_view_count needs the parameter 'data'"):
        find_flow("page_view_count").build({})
