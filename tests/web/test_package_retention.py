"""Packages are deleted once no row names them, and stay otherwise."""

import getpass
import os
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from ftdash import tasks
from ftdash.eventlog.queries import EventFilter, Line, LineKind, log_page
from ftdash.jobs.models import Pipeline, Run, Upgrade
from ftdash.projection.projector import Projector
from pipelines.domain.commands import UpgradePipeline
from pipelines.domain.run import ShippedCode
from pipelines.packages.store import CodeStore
from tests.shipped_packages import shop_wheel
from tests.web.journals import Story, new_request, new_run

pytestmark = pytest.mark.usefixtures("site")

LONG_AGO = timedelta(days=31)


@pytest.fixture
def store(site: Path) -> CodeStore:
    return CodeStore(site)


def of_pipeline(code: ShippedCode) -> None:
    new_run()
    Pipeline.objects.update(code=as_row(code))
    over()


def of_living_run(code: ShippedCode) -> None:
    new_run(code=as_row(code))


def of_young_run(code: ShippedCode) -> None:
    new_run(code=as_row(code))
    Run.objects.update(status="FINISHED", ended_at=timezone.now())


def of_point(code: ShippedCode) -> None:
    Story(new_run(code=as_row(code))).started().completed(path="/p").ended()
    Projector().run_once()
    over()


def of_upgrade(code: ShippedCode) -> None:
    run = new_run()
    Upgrade.objects.create(
        request=new_request(run, UpgradePipeline(code=code)),
        pipeline=run.pipeline,
        old_run=run,
        new_code=as_row(code),
        checkpoints=1,
        timeout_ms=1,
        step_at=timezone.now(),
    )


NAMING = {
    "pipeline": (of_pipeline, "the pipeline flights, which starts from it"),
    "living": (of_living_run, "run flights-1, which continues or may still be audited"),
    "young": (of_young_run, "run flights-1, which continues or may still be audited"),
    "point": (of_point, "the recovery point /p, which it wrote"),
    "upgrade": (of_upgrade, "the upgrade of flights, which may start it"),
}


@pytest.mark.parametrize(("name", "said"), NAMING.values(), ids=NAMING)
def test_a_package_stays_while_something_names_it(
    store: CodeStore, tmp_path: Path, name: Callable[[ShippedCode], None], said: str
) -> None:
    code = aged(store, tmp_path, "1.0")
    name(code)

    with pytest.raises(CommandError, match=f"stays: it is needed by {said}") as refusal:
        package("remove", code.sha256[:12], "--reason", "no use")
    tasks.shorten_run_files()

    assert refusal.value.returncode == 2
    (line,) = lines()
    assert line.what == f"tried to remove package {code.sha256[:12]}"
    assert (line.actor, line.why) == (getpass.getuser(), "no use")
    assert line.outcome.startswith(f"refused: The package {code.described} stays: it is needed by")
    assert list(store.listed()) == [code]


def test_a_package_that_nothing_names_is_removed_for_good(store: CodeStore, tmp_path: Path) -> None:
    code, other = aged(store, tmp_path, "1.0"), aged(store, tmp_path, "1.1")
    new_run(code=as_row(code))
    over()

    assert code.sha256 in package("remove", code.sha256[:12])

    assert list(store.listed()) == [other]
    assert [each.name for each in store.place_of(code).parent.iterdir()] == [other.sha256]
    with pytest.raises(CommandError, match="There is no package here"):
        package("remove", code.sha256[:12])
    again, removed = lines()
    assert again.outcome.startswith("refused: There is no package here whose sha256 begins with")
    assert (removed.actor, removed.outcome) == (getpass.getuser(), "done")
    assert removed.what == f"removed package shipped-shop 1.0 ({code.sha256})"


def test_the_sweep_deletes_unneeded_packages_but_leaves_new_ones(
    store: CodeStore, tmp_path: Path
) -> None:
    named, unnamed = aged(store, tmp_path, "1.0"), aged(store, tmp_path, "1.1")
    new = store.add(shop_wheel(tmp_path / "new", "1.2"))
    of_living_run(named)

    assert package("sweep").split()[-1] == unnamed.sha256

    assert list(store.listed()) == [named, new]
    (line,) = lines()
    assert line.what == f"removed package shipped-shop 1.1 ({unnamed.sha256})"
    assert line.actor == getpass.getuser()


def test_the_daily_sweep_is_logged_under_the_name_of_ftdash(
    store: CodeStore, tmp_path: Path
) -> None:
    aged(store, tmp_path, "1.0")

    tasks.shorten_run_files()

    (line,) = lines()
    assert (line.actor, line.why) == ("ftdash", "nothing needs it")


def test_adding_a_package_is_logged_even_if_it_is_refused(store: CodeStore, tmp_path: Path) -> None:
    given = shop_wheel(tmp_path / "1.0", "1.0")

    package("add", str(given), "--reason", "for orders")
    with pytest.raises(CommandError):
        package("add", str(tmp_path / "nothing.whl"))

    refused, added = lines()
    assert added.what.startswith("added package shipped-shop 1.0 (")
    assert (added.actor, added.why) == (getpass.getuser(), "for orders")
    assert refused.what == "tried to add package nothing.whl"


def aged(store: CodeStore, directory: Path, version: str) -> ShippedCode:
    code = store.add(shop_wheel(directory / version, version))
    os.utime(store.file_of(code), (0, 0))
    return code


def over() -> None:
    Run.objects.update(status="FINISHED", ended_at=timezone.now() - LONG_AGO)


def as_row(code: ShippedCode) -> Any:
    return msgspec.to_builtins(code)


def lines() -> list[Line]:
    return log_page(EventFilter(kind=LineKind.SETTING), None, 50).lines


def package(*words: str) -> str:
    out = StringIO()
    call_command("package", *words, stdout=out)
    return out.getvalue()
