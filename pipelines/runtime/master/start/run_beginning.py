"""Keeps what the sources of a run were given when it began, for all of its attempts and drivers.

`connectors.beginning` declares what it holds. It is in the run's directory before slots get it, so
no later driver finds something else. A run of an earlier version has none: its driver looks when it
starts.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipelines.connectors.beginning import Beginning, listing_once
from pipelines.connectors.source import AnySource, BeginsOnce
from pipelines.disk.files import make_durable, replace_atomically
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.domain.ids import Uid


class RunBeginning:
    def __init__(
        self, file: Path | None = None, check_held: Callable[[], None] = lambda: None
    ) -> None:
        """`file` None: it is kept for one driver only. `check_held` is called before each write and
        raises if the lease is lost. Raises Rejected if the file makes no sense."""
        self._file = file
        self._check_held = check_held
        self._found = Beginning() if file is None else _read(file)

    @property
    def packed(self) -> bytes:
        return self._found.packed()

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Wrap it around building the pipeline."""
        with listing_once(self._found.directories) as listed:
            yield
        if listed != self._found.directories:
            self._keep(msgspec.structs.replace(self._found, directories=listed))

    def look(self, sources: Mapping[Uid, AnySource]) -> None:
        """Finds where to begin with sources that were not looked at yet. Raises Retryable."""
        new = {
            uid: source.find(frozenset(), is_start=True)
            for uid, source in sources.items()
            if isinstance(source, BeginsOnce) and uid not in self._found.splits
        }
        if new:
            self._keep(msgspec.structs.replace(self._found, splits={**self._found.splits, **new}))

    def _keep(self, found: Beginning) -> None:
        if self._file is not None:
            self._check_held()
            replace_atomically(self._file, msgspec.json.encode(found))
            make_durable(self._file.parent)
        self._found = found


def _read(file: Path) -> Beginning:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Beginning)
    except FileNotFoundError:
        return Beginning()
    except UNDECODABLE as error:
        raise Rejected(f"{file} does not say what the sources began with: {error}.") from error
