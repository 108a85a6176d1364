"""A reader that looks all the time while a run is killed: what it has seen must stay as it was."""

import subprocess
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

PAUSE_S = 0.5
PROBLEMS_KEPT = 5
END_S = 60.0


class Onlooker(Generic[Key, Value]):
    """Calls `look` again and again in a thread of its own, and waits for a server that is away.

    `look` raises AssertionError for a state that must never be seen, such as a duplicate row.
    """

    def __init__(self, name: str, look: Callable[[], Mapping[Key, Value]]) -> None:
        self.name = name
        self.looks = 0
        self.problems: list[str] = []
        self.seen: dict[Key, Value] = {}
        self._look = look
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=name, daemon=True)

    def __enter__(self) -> "Onlooker[Key, Value]":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self.problems.append(f"{self.name}: its last look has not ended after {END_S:g} s")

    def _go_on(self) -> None:
        while not self._ends.wait(PAUSE_S) and len(self.problems) < PROBLEMS_KEPT:
            try:
                self._compare(self._look())
            except subprocess.SubprocessError:
                continue  # the server is away
            except Exception as error:  # an error that a reader may not meet
                self.problems.append(f"{self.name}: {error!r}")

    def _compare(self, now: Mapping[Key, Value]) -> None:
        self.looks += 1
        for key, value in self.seen.items():
            if now.get(key) != value:
                self.problems.append(f"{self.name}: {key} was {value} and is {now.get(key)}")
        self.seen.update(now)
