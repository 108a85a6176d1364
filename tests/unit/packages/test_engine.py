"""The archive is the whole engine: it runs where no other code of the project is installed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from pipelines import __version__
from pipelines.flows.finding import declared_flows
from pipelines.packages.wheel import ENGINE, FILE, pack_engine

SLOT = """
from importlib.metadata import version
import pipelines.runtime.slot.slot as slot
from pipelines.flows.finding import declared_flows, find_flow
print(slot.__file__, version("ftdash"), *declared_flows(), find_flow("page_view_count").name)
"""


def test_the_archive_alone_holds_the_slot_and_the_declared_pipelines(
    tmp_path: Path,
) -> None:
    pack_engine(tmp_path, declared_flows() | {"shop": "shop.flow:shop"})

    ran = subprocess.run(
        [sys.executable, "-c", SLOT],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": FILE},
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stderr
    module, version, *flows = ran.stdout.split()
    assert module == str(tmp_path / FILE / "pipelines/runtime/slot/slot.py")
    assert version == __version__
    assert flows == ["flight_delays", "page_view_count", "page_views", "page_view_count"]


def test_the_archive_holds_every_module_and_is_reproducible(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("first", "again")]
    for place in places:
        place.mkdir()
    first, again = (pack_engine(place, declared_flows()) for place in places)

    held = {name for name in zipfile.ZipFile(first).namelist() if name.endswith(".py")}
    assert held == {str(path.relative_to(ENGINE.parent)) for path in ENGINE.rglob("*.py")}
    assert first.read_bytes() == again.read_bytes()
