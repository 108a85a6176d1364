"""A pipeline whose package is shipped: started, started again, and restored with newer code."""

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from ftdash.jobs.models import Pipeline, Run
from ftdash.requests import services
from ftdash.supervision import launcher
from pipelines.domain.errors import Rejected
from pipelines.domain.status import JobStatus
from pipelines.packages.store import CodeStore
from tests.shipped_packages import shop_wheel

pytestmark = pytest.mark.django_db

WHO = {"requester": "ann", "reason": "a new version"}


@pytest.fixture(autouse=True)
def jobs(settings, tmp_path: Path) -> Path:
    settings.JOBS_ROOT = tmp_path / "jobs"
    return tmp_path / "jobs"


def test_a_package_is_added_once_and_listed(tmp_path: Path) -> None:
    given = str(shop_wheel(tmp_path))

    added, again = (told("package", "add", given, "--json") for _ in range(2))

    assert added == again == told("package", "list", "--json")
    assert json.loads(added)[0]["file"] == "shipped_shop-1.0-py3-none-any.whl"
    assert told("package", "list").startswith("shipped-shop  1.0  shipped_shop-1.0-py3-none")


def test_a_start_with_a_package_passes_its_digest_to_the_driver(tmp_path: Path, jobs: Path) -> None:
    submitted(shop_wheel(tmp_path))

    code = next(CodeStore(jobs).listed())
    run = Run.objects.get()
    assert run.pipeline.flow == "orders", "the only pipeline that the package declares"
    assert run.shipped_code == run.pipeline.shipped_code == code
    assert launcher._spec(run).code == code


def test_an_added_package_can_be_chosen_by_a_prefix_of_its_digest(
    tmp_path: Path, jobs: Path
) -> None:
    code = CodeStore(jobs).add(shop_wheel(tmp_path))

    call_command("pipeline", "submit", "shop", "--code", code.sha256[:10], stdout=StringIO())

    assert Run.objects.get().shipped_code == code


def test_a_second_start_keeps_the_package_until_another_is_given(
    tmp_path: Path, jobs: Path
) -> None:
    submitted(shop_wheel(tmp_path, "1.0"))
    ended()
    services.submit_pipeline(name="shop", flow="orders", **WHO)
    ended()
    submitted(shop_wheel(tmp_path, "1.1"))

    versions = [run.code["version"] for run in Run.objects.order_by("number")]
    assert versions == ["1.0", "1.0", "1.1"]
    assert Pipeline.objects.get().code["version"] == "1.1"


def test_two_pipelines_run_two_versions_of_one_package(tmp_path: Path) -> None:
    submitted(shop_wheel(tmp_path, "1.0"), name="first")
    submitted(shop_wheel(tmp_path, "1.1"), name="second")

    assert [each.code["version"] for each in Pipeline.objects.order_by("name")] == ["1.0", "1.1"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("shop-1.0-py3-none-any.whl", None, "There is no file"),
        ("shop.txt", "a text", "is no wheel"),
        ("shop-1.0-py3-none-any.whl", "a text", "cannot be read as a wheel"),
        ("shop-1.0-cp37-cp37m-linux_x86_64.whl", "", "was built for cp37-cp37m-linux_x86_64"),
    ],
)
def test_a_missing_or_invalid_package_is_refused_with_one_sentence(
    tmp_path: Path, name: str, content: str | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)

    for words in (("package", "add"), ("pipeline", "submit", "shop", "--code")):
        with pytest.raises(CommandError, match=sentence) as refusal:
            call_command(*words, str(tmp_path / name))
        assert "\n" not in str(refusal.value)
    assert not Pipeline.objects.exists()


def test_a_name_that_is_no_pipeline_of_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"no pipeline 'order' in shipped-shop 1.0 .* 'orders'"):
        submitted(shop_wheel(tmp_path), "--flow", "order")
    assert not Pipeline.objects.exists()


def test_an_import_error_in_the_package_shows_the_authors_traceback(
    tmp_path: Path,
) -> None:
    with pytest.raises(CommandError) as refusal:
        submitted(shop_wheel(tmp_path, code="import nothing_of_this_name\n"))

    sentence, _, traceback = str(refusal.value).partition("\n\n")
    assert sentence.startswith("The module shipped_shop.flow cannot be imported: ModuleNotFound")
    assert "import nothing_of_this_name" in traceback
    assert not Pipeline.objects.exists()


def test_a_start_names_the_package_that_is_missing_from_the_store(
    tmp_path: Path, jobs: Path
) -> None:
    submitted(shop_wheel(tmp_path))
    ended()
    store = CodeStore(jobs)
    store.file_of(next(store.listed())).unlink()
    from pipelines.packages.loading import load

    load.cache_clear()

    with pytest.raises(Rejected, match=r"The package shipped-shop 1.0 \(sha256 .*\) is not in"):
        services.submit_pipeline(name="shop", flow="orders", **WHO)


def submitted(package: Path, *words: str, name: str = "shop") -> None:
    call_command("pipeline", "submit", name, "--code", str(package), *words, stdout=StringIO())


def ended() -> None:
    Run.objects.update(status=JobStatus.FINISHED.value)


def told(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()
