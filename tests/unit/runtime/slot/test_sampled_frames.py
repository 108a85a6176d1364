"""The sampler reads what other threads execute. That may not stop the process."""

import gc
import sys
import threading
from types import FrameType

import pytest

from pipelines.runtime.slot.subtask_reports import frames_of_threads


@pytest.mark.parametrize("collects", [True, False])
def test_no_collection_begins_while_the_frames_of_threads_are_read(
    collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 before its ninth release would wait for itself, and all threads for that one."""
    during: list[bool] = []
    read = sys._current_frames

    def noting() -> dict[int, FrameType]:
        during.append(gc.isenabled())
        return read()

    monkeypatch.setattr(sys, "_current_frames", noting)
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        frames = frames_of_threads()
        after = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()

    assert threading.get_ident() in frames
    assert during == [False]
    assert after is collects
