"""A slot builds its pipeline only from the code that the run's manifests name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RunId
from pipelines.domain.run import ShippedCode
from pipelines.domain.settings.parsing import parse_settings
from pipelines.packages import loading
from pipelines.packages.store import CodeStore
from pipelines.runtime.control import Deploy
from pipelines.runtime.slot.deployment import built_pipeline
from tests.shipped_packages import SHOP, shop_wheel

IN_SLOTS = SHOP.replace("Numbers(10)", "Numbers(ROWS)")


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Unloads the code after each test: a slot serves one run, but this process runs more tests."""
    yield
    while loading._in_use:
        loading._in_use[-1]._leave({})


def test_a_slot_runs_the_package_that_was_sent(tmp_path: Path) -> None:
    code, sent = arrived(tmp_path, rows=12)

    assert rows_of(code, sent) == 12


def test_a_slot_does_not_run_an_installed_package_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is so even if the slot's parent process has imported that package."""
    folder = tmp_path / "installed" / "shipped_shop"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "flow.py").write_text(IN_SLOTS.replace("ROWS", "5"))
    monkeypatch.syspath_prepend(str(folder.parent))
    assert rows_of(None, None) == 5

    code, sent = arrived(tmp_path, rows=12)

    assert rows_of(code, sent) == 12
    for name in [name for name in sys.modules if name.startswith("shipped_shop")]:
        del sys.modules[name]


def test_a_slot_refuses_a_wheel_with_the_right_name_but_other_code(tmp_path: Path) -> None:
    code, sent = arrived(tmp_path, rows=12)
    other, place = arrived(tmp_path / "other", rows=13)
    (sent / code.file).write_bytes((place / other.file).read_bytes())

    with pytest.raises(Rejected, match="is not the package of this run: its sha256 is"):
        rows_of(code, sent)


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (None, "was not sent to this slot; install it on every machine"),
        ("empty", "is not in .*empty"),
    ],
)
def test_a_slot_without_the_package_says_so(
    tmp_path: Path, place: str | None, sentence: str
) -> None:
    code, _ = arrived(tmp_path, rows=12)

    with pytest.raises(Rejected, match=sentence):
        rows_of(code, None if place is None else tmp_path / place)


def arrived(root: Path, rows: int) -> tuple[ShippedCode, Path]:
    """Returns a package and the directory where the host put its wheel."""
    store = CodeStore(root / "jobs")
    code = store.add(shop_wheel(root, code=IN_SLOTS.replace("ROWS", str(rows))))
    return code, store.place_of(code)


def rows_of(code: ShippedCode | None, packages: Path | None) -> int:
    """Returns the number of rows that the slot's pipeline reads."""
    settings = parse_settings({})
    message = Deploy(
        run_id=RunId("run-1"),
        pipeline="shipped_shop.flow:shop",
        parameters={},
        parallelism=1,
        max_parallelism=128,
        peers=[],
        storage_roots=[],
        max_memory_state_bytes=0,
        compresses_snapshots=False,
        digests_output=True,
        restore_location=None,
        restore_manifest=None,
        barriers=settings.barriers,
        state=settings.state,
        code=code,
    )
    [source] = built_pipeline(message, packages).sources.values()
    return source.total  # type: ignore[union-attr]
