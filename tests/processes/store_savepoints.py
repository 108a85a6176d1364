"""`python -m tests.processes.store_savepoints`: store savepoints of the present format for good.

Run it once when FORMAT_VERSION has grown, with the release that writes that format.
"""

import re
import shutil
import tempfile
from pathlib import Path

from pipelines.bus.inbox import submit
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import RequestEnded
from pipelines.domain.ids import RequestId
from pipelines.domain.snapshots import FORMAT_VERSION
from pipelines.domain.status import SavepointFormat
from pipelines.storage.manifests import digest_of
from tests.processes.host import hosted_run
from tests.processes.numbers import committed

ROOT = Path(__file__).parents[1] / "stored_savepoints"
HELD_AT = 700  # in the middle of a window, so that state holds a part of it
HELD = {"held_at": str(HELD_AT), "total": "1200"}
SETTINGS = {"execution.checkpointing.interval": "50 ms"}
STEP_S = 60.0


def store(taken_as: SavepointFormat, target: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        with hosted_run(Path(directory), HELD, settings=SETTINGS) as run:
            run.wait_until_cut_at(HELD_AT, STEP_S)
            command = StopWithSavepoint(
                request_id=RequestId("store"), requested_by="tests", reason="", format=taken_as
            )
            submit(run.directory, command)
            run.wait_until_over(STEP_S)
        [answer] = [each.event for each in run.of(RequestEnded)]
        savepoint = Path(str(answer.path))  # type: ignore[attr-defined]
        shutil.copytree(savepoint, target / "savepoint")
        committed(output).to_json(target / "output.json", orient="records")
    _forget_the_machine(target / "savepoint" / "manifest.json")


def _forget_the_machine(manifest: Path) -> None:
    """Replaces the directories in the manifest: where the output was then does not matter."""
    _, _, sealed = manifest.read_text().partition('"manifest":')
    content = re.sub(r'"directory":"[^"]*"', '"directory":"/output/of/then"', sealed[:-1])
    manifest.write_text(f'{{"digest":"{digest_of(content.encode())}","manifest":{content}}}')


if __name__ == "__main__":
    for each in SavepointFormat:
        store(each, ROOT / f"format-{FORMAT_VERSION}" / each.lower())
