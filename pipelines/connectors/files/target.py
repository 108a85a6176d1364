"""The directory of `ExactlyOnceFiles`: whose it is, what its names mean, what is visible.

    part-<run>-<checkpoint>-<subtask>-<n>.<suffix>                  committed, visible
    .prepared-<run>-a<attempt>-<checkpoint>-<subtask>-<n>.<suffix>  durable, until its checkpoint is
    .in-progress-<run>-a<attempt>-<subtask>-<n>.<suffix>            being written
    _superseded/<run>/part-...                                      set aside when <run> started
    _ftdash.json                                                    pipeline, run and attempt: owner

Who removes what, so that nothing restorable is lost:

- in progress: whoever starts next, of this run or another. No checkpoint names such a file.
- prepared: only of the run that starts, and only behind its starting point. That run restores its
  newest whole point, so what lies behind it belongs to checkpoints that never completed. Prepared
  files of other runs stay: their last checkpoint may be restored later.
- both are removed by `rewind`, and again when writers of the next attempt start and end: a slot
  that was fenced may finish what it was doing for as long as it takes to die. Whatever of older
  attempts is still there goes with the first checkpoint that an attempt completes: then all that
  was restored is committed.
- visible: nobody. `rewind` makes the visible files exactly those of the lineage: it sets others
  aside, and brings back what an earlier rewind set aside and this lineage contains.
"""

import fcntl
import filecmp
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipelines.connectors.lineage import Lineage, newest_of
from pipelines.disk.directories import make_directory, make_durable
from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.errors import ProtocolError, Rejected, Retryable, check
from pipelines.domain.ids import Attempt, RunId

OWNER_FILE = "_ftdash.json"
LOCK_FILE = "_ftdash.lock"
SUPERSEDED = "_superseded"

SUFFIXES = (".parquet", ".jsonl")

_SUFFIX = rf"(?:{'|'.join(map(re.escape, SUFFIXES))})"
FINAL = re.compile(r"part-(?P<run>[^/]+)-(?P<checkpoint>\d{8,})-\d+-\d+" + _SUFFIX)
PREPARED = re.compile(
    r"\.prepared-(?P<run>[^/]+)-a(?P<attempt>\d+)-(?P<checkpoint>\d{8,})-(?P<subtask>\d+)-\d+"
    + _SUFFIX
)
IN_PROGRESS = re.compile(
    r"\.in-progress-(?P<run>[^/]+)-a(?P<attempt>\d+)-(?P<subtask>\d+)-\d+" + _SUFFIX
)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline a directory belongs to, the newest writer it has seen, and the checkpoint of
    the run that this writer starts from; None: nobody has said."""

    pipeline: str
    run_id: RunId
    attempt: Attempt
    restored_id: int | None = None


class FileTarget:
    """Guarantee: after `rewind`, the visible files are those of the lineage, and only writers of
    the newest attempt of the run that rewound may add to them.
    """

    def __init__(self, directory: Path, pipeline: str) -> None:
        self.directory = directory
        self._pipeline = pipeline

    def validate(self) -> None:
        existing = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        if not existing.is_dir():
            raise Rejected(
                f"The output directory {self.directory} cannot be made: {existing} is a file."
            )
        if not os.access(existing, os.W_OK | os.X_OK):
            raise Rejected(
                f"The output directory {self.directory} may not be written by this user."
            )
        if existing == self.directory:
            self._check_ours(self._owner())

    def rewind(self, lineage: Lineage, run_id: RunId) -> int:
        """How many visible files were set aside. A rewind that was interrupted can be repeated."""
        newest = newest_of(lineage)
        restored_id = newest.get(run_id, 0)
        with self._locked() as owner:
            attempt = owner.attempt if owner and owner.run_id == run_id else Attempt(0)
            self._write_owner(owner, run_id, attempt, restored_id)
        foreign = [f for f in self.directory.iterdir() if _final_belongs(f, newest) is False]
        self._move(foreign, self.directory / SUPERSEDED / run_id)
        returning = self.directory.glob(f"{SUPERSEDED}/*/part-*")
        self._move([f for f in returning if _final_belongs(f, newest)], self.directory)
        self._remove_unfinished(run_id, restored_id)
        return len(foreign)

    def belonging(self, lineage: Lineage) -> list[Path]:
        """What `rewind` would make visible, or leave so; touches nothing."""
        newest = newest_of(lineage)
        known = [*self.directory.glob("part-*"), *self.directory.glob(f"{SUPERSEDED}/*/part-*")]
        return sorted(file for file in known if _final_belongs(file, newest))

    def enter(self, run_id: RunId, attempt: Attempt) -> None:
        """A writer starts: from now on older attempts of the run are refused.

        Raises ProtocolError if this attempt, or its run, has been replaced already.
        """
        with self._locked() as owner:
            if owner is not None:
                self._check_not_replaced(owner, run_id, attempt)
            self._write_owner(owner, run_id, attempt, owner.restored_id if owner else None)

    def check_current(self, run_id: RunId, attempt: Attempt) -> None:
        """Raises ProtocolError if a newer attempt or another run writes here now."""
        owner = self._owner()
        check(owner is not None, "a directory with a writer has an owner", at=self.directory)
        if owner is not None:
            self._check_not_replaced(owner, run_id, attempt)

    def remove_left_over(self, run_id: RunId, attempt: Attempt, subtask: int) -> None:
        """What older attempts of this subtask left behind the starting point; subtask 0 also
        stands in for those gone."""
        owner = self._owner()
        restored_id = None if owner is None else owner.restored_id
        for file in self.directory.iterdir():
            name = _left_over(file, run_id, restored_id)
            if name and int(name["attempt"]) < attempt and subtask in (0, int(name["subtask"])):
                file.unlink(missing_ok=True)

    def remove_older(self, run_id: RunId, attempt: Attempt) -> None:
        """What older attempts of the run have not committed, wherever they started from."""
        for file in self.directory.iterdir():
            name = PREPARED.fullmatch(file.name) or IN_PROGRESS.fullmatch(file.name)
            if name and name["run"] == run_id and int(name["attempt"]) < attempt:
                file.unlink(missing_ok=True)

    def _remove_unfinished(self, run_id: RunId, restored_id: int) -> None:
        for file in self.directory.iterdir():
            if IN_PROGRESS.fullmatch(file.name) or _left_over(file, run_id, restored_id):
                file.unlink(missing_ok=True)

    def _move(self, files: list[Path], to: Path) -> None:
        if not files:
            return
        make_directory(to)
        for file in files:
            moved = to / file.name
            is_free = not moved.exists() or filecmp.cmp(moved, file, shallow=False)
            check(is_free, "a file that a loss of power left in two places is one", file=file)
            file.rename(moved)
        for directory in dict.fromkeys((to, *(file.parent for file in files))):
            make_durable(directory)  # where they went first, or the power might take both names

    def _check_not_replaced(self, owner: Owner, run_id: RunId, attempt: Attempt) -> None:
        self._check_ours(owner)
        if owner.run_id != run_id or owner.attempt > attempt:
            raise ProtocolError(
                f"attempt {attempt} of run {run_id} may not write to {self.directory} any more: "
                f"attempt {owner.attempt} of run {owner.run_id} does"
            )

    def _check_ours(self, owner: Owner | None) -> None:
        if owner is None and any(file.suffix in SUFFIXES for file in self.directory.glob("[!._]*")):
            raise Rejected(
                f"The output directory {self.directory} already holds files of another origin; "
                "choose an empty one."
            )
        if owner is not None and owner.pipeline != self._pipeline:
            raise Rejected(
                f"The output directory {self.directory} belongs to pipeline {owner.pipeline}; "
                f"choose another one for {self._pipeline}."
            )

    def _owner(self) -> Owner | None:
        file = self.directory / OWNER_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=Owner)
        except FileNotFoundError:
            return None
        except UNDECODABLE as error:
            raise Rejected(f"{file} does not say whose output this is: {error}.") from error

    def _write_owner(
        self, old: Owner | None, run_id: RunId, attempt: Attempt, restored_id: int | None
    ) -> None:
        owner = Owner(
            pipeline=self._pipeline, run_id=run_id, attempt=attempt, restored_id=restored_id
        )
        if owner == old:
            return
        new = self.directory / f".{OWNER_FILE}.new"  # one name suffices: the lock is held
        with new.open("wb") as file:
            file.write(msgspec.json.encode(owner))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.directory / OWNER_FILE)
        make_durable(self.directory)

    @contextmanager
    def _locked(self) -> Iterator[Owner | None]:
        """The owner, while nobody else can change it."""
        make_directory(self.directory)
        with (self.directory / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            owner = self._owner()
            self._check_ours(owner)
            yield owner


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """What the disk refuses may work later: Retryable, naming the directory."""
    try:
        yield
    except OSError as error:
        raise Retryable(f"Writing to {directory} failed: {error}") from error


def _left_over(file: Path, run_id: RunId, restored_id: int | None) -> re.Match[str] | None:
    """The name of an unfinished file of the run that its starting point does not know."""
    name = IN_PROGRESS.fullmatch(file.name)
    if name is None and restored_id is not None:
        name = PREPARED.fullmatch(file.name)
        name = name if name and int(name["checkpoint"]) > restored_id else None
    return name if name and name["run"] == run_id else None


def _final_belongs(file: Path, newest: dict[RunId, int]) -> bool | None:
    """None: not a file of ours."""
    name = FINAL.fullmatch(file.name)
    return None if name is None else int(name["checkpoint"]) <= newest.get(RunId(name["run"]), 0)
