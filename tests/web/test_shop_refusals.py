"""A wrong start of the example `shop` is refused with one sentence and the author's lines."""

import shutil
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from ftdash.jobs.models import Pipeline
from tests.project_wheels import GENERATED, SHOP

pytestmark = pytest.mark.django_db


@pytest.fixture
def project(settings, tmp_path: Path) -> Path:
    settings.JOBS_ROOT = tmp_path / "jobs"
    shutil.copytree(SHOP, tmp_path / "shop", ignore=GENERATED)
    return tmp_path / "shop"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--flow=shop.flaw:shop"], "There is no module shop.flaw in shop "),
        (["--flow=shops.flow:shop"], "There is no module shops.flow in shop "),
        (
            ["--flow=shop.flow:shpo"],
            "There is no pipeline 'shpo' in shop.flow; did you mean",
        ),
        (
            ["--flow=shop.flow:Parameters"],
            "shop.flow:Parameters is no pipeline, it is",
        ),
        (["--parameter=window=1 week"], "The parameter 'window' cannot be '1 week'; expected "),
        (
            ["--parameter=fraud_limit=much"],
            "The parameter 'fraud_limit' cannot be 'much'; ",
        ),
        (["--parameter=database=secret"], "The parameter 'database' cannot be what was "),
    ],
)
def test_a_wrong_name_or_parameter_is_refused_in_one_sentence(
    project: Path, words: list[str], sentence: str
) -> None:
    refusal = refused(project, *words)

    assert refusal.startswith(sentence), refusal
    assert len(refusal.splitlines()) == 1


def test_an_import_error_shows_the_lines_of_its_author_and_no_others(project: Path) -> None:
    fraud = project / "shop" / "fraud.py"
    fraud.write_text("import nothing_of_this_name\n" + fraud.read_text())

    sentence, _, traceback = refused(project).partition("\n\n")

    assert sentence == (
        "The module shop.flow cannot be imported: ModuleNotFoundError: No module named"
        " 'nothing_of_this_name'."
    )
    assert "import nothing_of_this_name" in traceback
    assert "pipelines/flows" not in traceback


def test_an_error_in_the_build_names_the_wrong_column_in_its_first_line(project: Path) -> None:
    flow = project / "shop" / "flow.py"
    flow.write_text(flow.read_text().replace('key_by("order")', 'key_by("odrer")'))

    refusal = refused(project)

    assert "odrer" in refusal.splitlines()[0]


def test_a_wheel_for_another_python_is_refused_before_it_is_stored(project: Path) -> None:
    wheel = project / "shop-3.0-cp37-cp37m-linux_x86_64.whl"
    wheel.touch()

    refusal = refused(wheel)

    assert refusal.startswith(
        f"{wheel.name} was built for cp37-cp37m-linux_x86_64, and ftdash runs"
    )
    assert len(refusal.splitlines()) == 1


def refused(code: Path, *words: str) -> str:
    place = code if code.is_dir() else code.parent
    given = {
        "redis": f"file:{place / 'pyproject.toml'}",
        "rates": str(place),
        "output": str(place),
        "customers": "http://customers.example",
        "database": f"file:{place / 'pyproject.toml'}",
    }
    parameters = [f"--parameter={name}={text}" for name, text in given.items()]
    with pytest.raises(CommandError) as refusal:
        call_command(
            *("pipeline", "submit", "shop", f"--code={code}", *parameters, *words),
            stdout=StringIO(),
        )
    assert not Pipeline.objects.exists()
    return str(refusal.value)
