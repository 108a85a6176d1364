"""A function becomes a pipeline; a class declares its parameters, which arrive as text."""

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest

from pipelines.connectors.in_process import BlackHole
from pipelines.domain import texts
from pipelines.domain.errors import BrokenCode, Rejected
from pipelines.stream import Environment, Secret, flow
from pipelines.stream.parameters import declared_parameters, read_parameters
from tests.processes.numbers import Numbers


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Everything:
    data: Annotated[Path, "directory of orders"]
    token: Annotated[Secret, "of the price service"]
    rows: Annotated[int, "how many"] = 3
    part: float = 0.5
    is_verbose: bool = False
    window: Annotated[timedelta, "length"] = timedelta(minutes=1)
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    name: str = field(default_factory=lambda: "shop")


NEEDED = {"data": "/data", "token": "env:PRICES"}


def test_the_parameters_of_a_pipeline_follow_from_its_class() -> None:
    found = {each.name: each for each in declared_parameters(Everything)}

    assert [each for each, parameter in found.items() if parameter.default is None] == [
        "data",
        "token",
    ]
    assert found["data"].help == "directory of orders"
    assert [each for each, parameter in found.items() if parameter.is_secret] == ["token"]
    assert found["is_verbose"].choices == ("false", "true")
    assert found["colour"].choices == ("red", "blue")
    assert found["mode"].choices == ("fast", "slow")


def test_a_default_as_text_reads_back_as_itself() -> None:
    defaults = {e.name: e.default for e in declared_parameters(Everything) if e.default is not None}

    assert read_parameters(Everything, NEEDED | defaults) == read_parameters(Everything, NEEDED)
    assert defaults["window"] == "1 min"


def test_text_is_read_as_the_type_that_the_class_declares() -> None:
    texts = {"rows": "12", "part": "2", "is_verbose": "true", "window": "500 ms", "colour": "blue"}

    read = read_parameters(Everything, NEEDED | texts | {"mode": "slow"})

    assert (read.data, read.rows, read.part, read.is_verbose) == (Path("/data"), 12, 2.0, True)
    assert (read.window, read.colour) == (timedelta(milliseconds=500), Colour.BLUE)
    assert read.mode == "slow"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("rows", "many", "The parameter 'rows' cannot be 'many'; expected a whole number."),
        ("part", "x", "The parameter 'part' cannot be 'x'; expected a number."),
        ("is_verbose", "maybe", "cannot be 'maybe'; expected true or false."),
        ("window", "1 week", "cannot be '1 week'; expected a whole number with a unit"),
        ("colour", "green", "cannot be 'green'; expected one of red, blue."),
        ("mode", "odd", "cannot be 'odd'; expected one of fast, slow."),
        ("token", "hunter2", "cannot be what was given; expected the place that keeps the secret"),
    ],
)
def test_a_text_of_the_wrong_type_is_refused_by_the_parameters_name(
    name: str, text: str, sentence: str
) -> None:
    with pytest.raises(Rejected) as refusal:
        read_parameters(Everything, NEEDED | {name: text})

    assert sentence in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_secret_is_read_from_its_place_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    monkeypatch.setenv("PRICES", "hunter3")

    assert Secret(f"file:{tmp_path}/token").reveal() == "hunter2"
    assert Secret("env:PRICES").reveal() == "hunter3"
    assert repr(Secret("env:PRICES")) == "Secret(reference='env:PRICES')"
    monkeypatch.delenv("PRICES")
    with pytest.raises(Rejected, match="variable PRICES, which keeps a secret, is unset") as unset:
        Secret("env:PRICES").reveal()
    assert "name it in FTDASH_PIPELINE_VARIABLES" in str(unset.value)
    with pytest.raises(Rejected, match="cannot be read: No such file"):
        Secret(f"file:{tmp_path}/nowhere").reveal()


def test_a_systemd_credential_is_read_from_the_services_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices").write_text("hunter4\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))

    assert Secret("credential:prices").reveal() == "hunter4"
    for outside in ("../prices", "a/b", ".."):
        with pytest.raises(ValueError, match="credential:NAME"):
            Secret(f"credential:{outside}").reveal()
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(Rejected, match="CREDENTIALS_DIRECTORY, which holds the credential prices"):
        Secret("credential:prices").reveal()


def test_a_revealed_secret_is_in_no_log_and_in_no_error_of_the_build(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(texts, "_revealed", set())
    monkeypatch.setenv("PRICES", "hunter-in-logs")
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())

    @flow
    def shop(env: Environment) -> None:
        raise ValueError(Secret("env:PRICES").reveal())

    with pytest.raises(BrokenCode) as broken:
        shop.build({})
    try:
        raise ValueError("hunter-in-logs is refused")
    except ValueError:
        logging.getLogger("shop").exception("It asks with %s.", "hunter-in-logs")

    assert str(broken.value) == "The pipeline shop cannot be built: ValueError: ***."
    assert "hunter" not in broken.value.traceback.replace("hunter-in-logs is", "")
    assert "It asks with ***." in caplog.text
    assert "hunter-in-logs" not in logging.Formatter().format(caplog.records[-1])


def test_a_parameter_without_a_text_form_is_refused_where_it_is_declared() -> None:
    @dataclass
    class Odd:
        rows: list[int]

    with pytest.raises(TypeError, match="the parameter 'rows' is a"):
        declared_parameters(Odd)


def test_a_function_is_declared_under_its_name_and_built_with_its_parameters() -> None:
    @dataclass(frozen=True)
    class Total:
        total: Annotated[int, "how many numbers"] = 10

    def counted(env: Environment, parameters: Total) -> None:
        """Reads numbers.

        More about it.
        """
        env.source(Numbers(parameters.total), uid="numbers").sink(BlackHole(), uid="nowhere")

    counted.__annotations__["parameters"] = Total  # its module cannot name a local class
    declared = flow(counted)

    assert (declared.name, declared.summary) == ("counted", "Reads numbers.")
    assert [each.name for each in declared.parameters] == ["total"]
    assert declared.build({"total": "5"}).sources["numbers"] == Numbers(5)
    assert declared.build({}).sources["numbers"] == Numbers(10)


def test_a_function_with_other_arguments_is_no_pipeline() -> None:
    def odd(env: Environment, parameters) -> None:
        pass

    with pytest.raises(TypeError, match="odd takes an Environment and"):
        flow(odd)


def test_an_exception_of_the_author_becomes_a_sentence_with_its_traceback() -> None:
    @flow
    def broken(env: Environment) -> None:
        {}["orders"]

    with pytest.raises(BrokenCode) as refusal:
        broken.build({})

    assert str(refusal.value) == "The pipeline broken cannot be built: KeyError: 'orders'."
    assert '{}["orders"]' in refusal.value.traceback
    assert "/stream/declaration.py" not in refusal.value.traceback, "only the author's frames"


def test_a_rejection_in_the_authors_code_is_passed_on_unchanged() -> None:
    @flow
    def refusing(env: Environment) -> None:
        raise Rejected("No orders today.")

    with pytest.raises(Rejected, match=r"^No orders today\.$"):
        refusing.build({})
