"""`ftdash dev` follows real edits: state stays, and code that does not load loses nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.polling import wait_until

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
CODE = '''
import pyarrow as pa

from pipelines.connectors import SeededGenerator
from pipelines.stream import Environment, count, flow

VERSION = 1


def drawn(draws):
    return [pa.array(draws.integers("key", 0, 3))]


def marked(row):
    return {"key": row["key"], "numbers": row["numbers"], "version": VERSION}


@flow
def counts(env: Environment) -> None:
    """Counts for ever."""
    keys = pa.schema([("key", pa.int64())])
    draws = SeededGenerator(drawn, schema=keys, seed=7, splits=1, rows_per_s=200)
    totals = env.source(draws, uid="draws").key_by("key").aggregate(numbers=count(), uid="totals")
    rows = pa.schema([("key", pa.int64()), ("numbers", pa.int64()), ("version", pa.int64())])
    totals.map(marked, rows, uid="marked").collect(uid="result")
    totals.print(uid="shown")
'''


class Page:
    """The command, and the contents of its page."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        said = process.stdout.readline()
        found = ADDRESS.search(said)
        assert found is not None, said
        self.address = found[0]

    def view(self) -> dict[str, Any]:
        view: dict[str, Any] = json.loads(self.read("/view.json"))
        return view

    def read(self, path: str, host: str | None = None) -> str:
        asked = urllib.request.Request(self.address + path, headers={"Host": host} if host else {})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def newest(self) -> dict[str, int]:
        """Returns the newest row of the result, once there is one."""
        found: list[dict[str, int]] = []

        def has_row() -> bool:
            for each in self.view()["collects"]:
                rows = [
                    dict(zip(each["columns"], map(int, row), strict=True)) for row in each["rows"]
                ]
                found.extend(rows)
            return bool(found)

        wait_until(has_row, otherwise=lambda: f"no row was committed: {self.view()}")
        return found[-1]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    package = tmp_path / "work" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "flow.py").write_text(CODE)
    return package / "flow.py"


@pytest.fixture
def page(code: Path, tmp_path: Path) -> Iterator[Page]:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "dev", "shop.flow:counts", "--port", "0"],
        cwd=code.parents[1],
        env={**os.environ, "FTDASH_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Page(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_an_edit_starts_the_new_code_from_a_savepoint_and_broken_code_loses_no_state(
    page: Page, code: Path
) -> None:
    before = page.newest()
    assert before["version"] == 1

    code.write_text(CODE.replace("VERSION = 1", "VERSION = = 2"))

    wait_until(lambda: page.view()["status"] == "REFUSED", otherwise=lambda: str(page.view()))
    shown = page.read("/")
    assert "The module shop.flow cannot be imported: SyntaxError" in shown
    assert "VERSION = = 2" in page.view()["traceback"]
    kept = re.search(r'id="kept">([^<]+)<', shown)
    assert kept is not None
    assert (Path(kept[1]) / "manifest.json").is_file()

    code.write_text(CODE.replace("VERSION = 1", "VERSION = 2"))

    after = page.newest()
    assert after["version"] == 2
    assert after["numbers"] > before["numbers"]
    view = page.view()
    assert view["restored_from"] == kept[1]
    assert min(int(row[1]) for row in view["collects"][0]["rows"]) > before["numbers"]


def test_an_exception_shows_the_authors_lines_and_the_fixed_code_continues(
    page: Page, code: Path
) -> None:
    before = page.newest()

    code.write_text(CODE.replace('row["numbers"],', 'row["nothing"],'))

    wait_until(lambda: page.view()["status"] == "FAILED", otherwise=lambda: str(page.view()))
    view = page.view()
    assert "marked[0] failed" in view["problem"]
    assert 'return {"key": row["key"], "numbers": row["nothing"]' in view["traceback"]
    assert "chain_delivery.py" not in view["traceback"]

    code.write_text(CODE)

    assert page.newest()["numbers"] > before["numbers"]


def test_the_page_shows_graph_records_checkpoint_rows_and_prints(page: Page) -> None:
    page.newest()
    wait_until(lambda: page.view()["checkpoint"] is not None)
    view, shown = page.view(), page.read("/")

    operators = {uid for vertex in view["vertices"] for uid in vertex["operators"]}
    assert operators >= {"draws", "totals", "marked", "result", "shown"}
    assert all(vertex["records_in"] or vertex["records_out"] for vertex in view["vertices"])
    assert "rows since the start" in shown
    assert 'id="checkpoint"' in shown
    assert "&#x27;numbers&#x27;" in shown.partition('id="printed"')[2]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        page.read("/", host="elsewhere.example")


def test_ctrl_c_takes_a_savepoint_and_leaves_no_process(page: Page) -> None:
    page.newest()
    children = psutil.Process(page.process.pid).children(recursive=True)

    page.process.send_signal(signal.SIGINT)

    said, _ = page.process.communicate(timeout=60)
    assert page.process.returncode == 0, said
    found = re.search(r"--restore-from (\S+)", said)
    assert found is not None, said
    assert (Path(found[1]) / "manifest.json").is_file()
    assert [child for child in children if child.is_running()] == []
