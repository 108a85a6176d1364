"""Windows in plain Python, one row and one window at a time.

The oracles share only the rules with the operators: which windows a row enters, when a window is
due, when it closes, and that a window that has changed after it was due is emitted again.
"""

from dataclasses import dataclass, field


@dataclass
class Window:
    start: int
    end: int
    values: list[int] = field(default_factory=list)
    is_emitted: bool = False


Result = tuple[str, int, int, tuple[int, ...]]
"""The key, start and end of a window, and its values, sorted."""


@dataclass
class AlignedOracle:
    size: int
    every: int
    lateness: int
    watermark: int
    windows: dict[tuple[str, int], Window] = field(default_factory=dict)
    late: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, rows: list[tuple[str, int, int]]) -> list[Result]:
        """Takes (key, time, value) rows; returns the due windows that have changed."""
        for key, time, value in rows:
            starts = [s for s in range(time - self.size + 1, time + 1) if s % self.every == 0]
            is_open = [s for s in starts if s + self.size - 1 + self.lateness > self.watermark]
            if starts and not is_open:
                self.late.append((key, time, value))
            for start in is_open:
                window = self.windows.setdefault((key, start), Window(start, start + self.size))
                window.values.append(value)
                window.is_emitted = False
        return self._due() if self.lateness else []

    def advance(self, watermark: int) -> list[Result]:
        self.watermark = watermark
        due = self._due()
        for name, window in list(self.windows.items()):
            if window.end - 1 + self.lateness <= watermark:
                del self.windows[name]
        return due

    def _due(self) -> list[Result]:
        results = []
        for (key, _), window in self.windows.items():
            if window.end - 1 <= self.watermark and not window.is_emitted:
                window.is_emitted = True
                results.append((key, window.start, window.end, tuple(sorted(window.values))))
        return sorted(results)


@dataclass
class SessionOracle:
    gap: int
    lateness: int
    watermark: int
    sessions: list[tuple[str, Window]] = field(default_factory=list)
    late: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, rows: list[tuple[str, int, int]]) -> list[Result]:
        """The sessions before the batch decide which rows are late; then all other rows enter."""
        before = [(key, window.start, window.end) for key, window in self.sessions]
        for key, time, value in rows:
            is_closed_alone = time + self.gap - 1 + self.lateness <= self.watermark
            grows = any(k == key and s <= time + self.gap and time <= e for k, s, e in before)
            if is_closed_alone and not grows:
                self.late.append((key, time, value))
            else:
                self._merge(key, Window(time, time + self.gap, [value]))
        return self._due() if self.lateness else []

    def advance(self, watermark: int) -> list[Result]:
        self.watermark = watermark
        due = self._due()
        self.sessions = [
            (key, window)
            for key, window in self.sessions
            if window.end - 1 + self.lateness > watermark
        ]
        return due

    def _merge(self, key: str, added: Window) -> None:
        others = []
        for k, window in self.sessions:
            if k == key and window.start <= added.end and added.start <= window.end:
                start, end = min(window.start, added.start), max(window.end, added.end)
                added = Window(start, end, window.values + added.values)
            else:
                others.append((k, window))
        self.sessions = [*others, (key, added)]

    def _due(self) -> list[Result]:
        results = []
        for key, window in self.sessions:
            if window.end - 1 <= self.watermark and not window.is_emitted:
                window.is_emitted = True
                results.append((key, window.start, window.end, tuple(sorted(window.values))))
        return sorted(results)
