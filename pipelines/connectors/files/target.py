"""The directory of `ExactlyOnceFiles`: whose it is, what its names mean, what is visible.

    part-<run>-<checkpoint>-<subtask>-<n>.<suffix>                  committed, visible
    .prepared-<run>-a<attempt>-<checkpoint>-<subtask>-<n>.<suffix>  durable, until its checkpoint is
    .in-progress-<run>-a<attempt>-<subtask>-<n>.<suffix>            being written
    _superseded/<run>/part-...                                      set aside when <run> started
    _ftdash.json                                                    pipeline, holder and attempt

What removes which files, so that nothing restorable is lost:

- in progress: the next attempt of this run or another removes it. No checkpoint names such a file.
- prepared: a run that starts removes its own files behind its starting point. It restores its
  newest whole point, so those files belong to checkpoints that never completed. Of other runs,
  `discard` removes the files that its caller names, because no point needs them; a file that a
  point names stays, since the point may be restored later.
- `rewind` removes both kinds. The writers of the next attempt remove them again when they start and
  when they end, because a fenced slot may continue its work until it dies. The first checkpoint
  that an attempt completes removes what older attempts still left: by then, everything restored is
  committed.
- visible: never removed. `rewind` makes the visible files exactly those of the lineage: it sets
  others aside, and brings back files of the lineage that an earlier rewind set aside. Files that a
  run has set aside of its own stay there: it fell back to an older checkpoint because the newer
  ones were damaged, and wrote the same records again under later checkpoints.
"""

import fcntl
import filecmp
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipelines.connectors.sink import Lineage, Unfinished, newest_of
from pipelines.disk.files import entries_of, make_directory, make_durable
from pipelines.domain.errors import UNDECODABLE, ProtocolError, Rejected, Retryable, check
from pipelines.domain.ids import Attempt, CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder, taken

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


class TargetOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline that a directory belongs to, and the run that holds it (see `Holder`).

    `attempt` is the run's newest attempt that has started to write; up to `closed`, a rewind has
    refused them since. `restored_id` is the run's checkpoint from which it starts; None: not known.
    """

    pipeline: str
    run_id: RunId
    attempt: Attempt
    closed: Attempt = Attempt(0)
    restored_id: int | None = None
    epoch: int = 0
    installation: str = ""
    started_by: str = ""

    @property
    def holder(self) -> Holder:
        return Holder(
            run_id=self.run_id,
            epoch=self.epoch,
            installation=self.installation,
            started_by=self.started_by,
        )


class FileTarget:
    """Guarantee: after `rewind`, the visible files are those of the lineage.

    Only writers of the newest attempt of the run that holds the directory may add to them.
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

    @property
    def description(self) -> str:
        return f"the directory {self.directory}"

    def holder(self) -> Holder | None:
        owner = self._owner() if self.directory.exists() else None
        return None if owner is None else owner.holder

    def hold(self, claim: Claim) -> None:
        """Makes the claim's run the holder. Raises TargetTaken."""
        with self._locked() as owner:
            held = claim.admit(owner.holder if owner else None, self.description)
            is_same = owner is not None and owner.run_id == held.run_id
            known = owner if owner is not None and is_same else self._unknown(held.run_id)
            fields = {"epoch": held.epoch, "installation": held.installation}
            new = msgspec.structs.replace(known, **fields, started_by=held.started_by)
            self._write_owner(owner, new)

    def rewind(self, lineage: Lineage, run_id: RunId) -> int:
        """Returns how many visible files it set aside.

        An interrupted rewind can be repeated. No other run takes over the directory meanwhile.
        Raises TargetTaken if one has.
        """
        newest = newest_of(lineage)
        restored_id = newest.get(run_id, 0)
        with self._locked() as owner:
            known = self._held_by(owner, run_id)
            fields = {"restored_id": restored_id, "closed": known.attempt}
            self._write_owner(owner, msgspec.structs.replace(known, **fields))
            # Before the visible files are listed: a dying slot that passed its check just before
            # could still commit one of these, and it would then stay visible.
            self._remove_unfinished(run_id, restored_id)
            foreign = [f for f in self.directory.iterdir() if _final_belongs(f, newest) is False]
            self._move(foreign, self.directory / SUPERSEDED / run_id)
            returning = [f for f in self._superseded() if _final_belongs(f, newest)]
            self._move(returning, self.directory)
        return len(foreign)

    def belonging(self, lineage: Lineage) -> list[Path]:
        """Returns the files that `rewind` would make visible or leave visible; changes nothing."""
        newest = newest_of(lineage)
        known = [*entries_of(self.directory), *self._superseded()]
        return sorted(file for file in known if _final_belongs(file, newest))

    def enter(self, run_id: RunId, attempt: Attempt) -> None:
        """Called when a writer starts: from now on, older attempts of the run are refused.

        Raises ProtocolError if a newer attempt has started, TargetTaken if another run holds the
        directory.
        """
        with self._locked() as owner:
            known = self._held_by(owner, run_id)
            self._check_newest(known, attempt)
            self._write_owner(owner, msgspec.structs.replace(known, attempt=attempt))

    def check_current(self, run_id: RunId, attempt: Attempt) -> None:
        """Raises ProtocolError if a newer attempt writes here, TargetTaken if another run does."""
        owner = self._owner()
        check(owner is not None, "a directory with a writer has an owner", at=self.directory)
        self._check_ours(owner)
        self._check_newest(self._held_by(owner, run_id), attempt)

    def unfinished(self) -> list[Unfinished]:
        """Lists the unfinished files of all runs; see `LeavesUnfinished`."""
        if not self.directory.exists():
            return []
        self._check_ours(self._owner())
        return [each for file in self.directory.iterdir() if (each := _unfinished(file))]

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        """See `LeavesUnfinished`."""
        with self._locked() as owner:
            self._held_by(owner, run_id)
            files = [self.directory / name for name in names]
            found = [f for f in files if f.parent == self.directory and _unfinished(f)]
            for file in found:
                file.unlink(missing_ok=True)
        return len(found)

    def remove_left_over(self, run_id: RunId, attempt: Attempt, subtask: int) -> None:
        """Removes what older attempts of this subtask left behind the starting point.

        Subtask 0 does so for all subtasks, because some may no longer exist.
        """
        owner = self._owner()
        restored_id = None if owner is None else owner.restored_id
        for file in self.directory.iterdir():
            name = _left_over(file, run_id, restored_id)
            if name and int(name["attempt"]) < attempt and subtask in (0, int(name["subtask"])):
                file.unlink(missing_ok=True)

    def remove_older(self, run_id: RunId, attempt: Attempt) -> None:
        """Removes what older attempts of the run have not committed, wherever they started."""
        for file in self.directory.iterdir():
            name = PREPARED.fullmatch(file.name) or IN_PROGRESS.fullmatch(file.name)
            if name and name["run"] == run_id and int(name["attempt"]) < attempt:
                file.unlink(missing_ok=True)

    def _remove_unfinished(self, run_id: RunId, restored_id: int) -> None:
        for file in self.directory.iterdir():
            if IN_PROGRESS.fullmatch(file.name) or _left_over(file, run_id, restored_id):
                file.unlink(missing_ok=True)

    def _superseded(self) -> list[Path]:
        """Returns the files that runs have set aside of other runs. Raises OSError."""
        runs = entries_of(self.directory / SUPERSEDED)
        return [file for run in runs for file in entries_of(run) if _run_of(file) != run.name]

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
            make_durable(directory)  # `to` first, or a loss of power might take both names

    def _held_by(self, owner: TargetOwner | None, run_id: RunId) -> TargetOwner:
        """Returns the run's record. Raises TargetTaken if another run holds the directory."""
        if owner is None:
            return self._unknown(run_id)
        if owner.run_id != run_id:
            raise taken(self.description, run_id, owner.holder)
        return owner

    def _unknown(self, run_id: RunId) -> TargetOwner:
        """Returns the record of a run that has had no attempt here yet."""
        return TargetOwner(pipeline=self._pipeline, run_id=run_id, attempt=Attempt(0))

    def _check_newest(self, owner: TargetOwner, attempt: Attempt) -> None:
        if attempt < owner.attempt or attempt <= owner.closed:
            is_older = attempt < owner.attempt
            follower = f"attempt {owner.attempt} does" if is_older else "a newer one begins"
            raise ProtocolError(
                f"attempt {attempt} of run {owner.run_id} may not write to {self.directory} any"
                f" more: {follower}"
            )

    def _check_ours(self, owner: TargetOwner | None) -> None:
        if owner is None and any(map(_is_of_some_sink, entries_of(self.directory))):
            raise Rejected(
                f"The output directory {self.directory} already holds files of another origin; "
                "choose an empty one."
            )
        if owner is not None and owner.pipeline != self._pipeline:
            raise Rejected(
                f"The output directory {self.directory} belongs to pipeline {owner.pipeline}; "
                f"choose another one for {self._pipeline}."
            )

    def _owner(self) -> TargetOwner | None:
        file = self.directory / OWNER_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=TargetOwner)
        except FileNotFoundError:
            return None
        except UNDECODABLE as error:
            raise Rejected(f"{file} does not say whose output this is: {error}.") from error

    def _write_owner(self, old: TargetOwner | None, owner: TargetOwner) -> None:
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
    def _locked(self) -> Iterator[TargetOwner | None]:
        """Yields the owner, which no other process can change meanwhile."""
        make_directory(self.directory)
        with (self.directory / LOCK_FILE).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            owner = self._owner()
            self._check_ours(owner)
            yield owner


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turns a refusal of the disk, which may work later, into Retryable naming the directory."""
    try:
        yield
    except OSError as error:
        raise Retryable(f"Writing to {directory} failed: {error}") from error


def _left_over(file: Path, run_id: RunId, restored_id: int | None) -> re.Match[str] | None:
    """Returns the parsed name of an unfinished file of the run behind its starting point."""
    name = IN_PROGRESS.fullmatch(file.name)
    if name is None and restored_id is not None:
        name = PREPARED.fullmatch(file.name)
        name = name if name and int(name["checkpoint"]) > restored_id else None
    return name if name and name["run"] == run_id else None


def _is_of_some_sink(file: Path) -> bool:
    """Returns True for visible output of any writer."""
    return file.suffix in SUFFIXES and not file.name.startswith((".", "_"))


def _run_of(file: Path) -> str | None:
    """Returns the run that wrote the visible file, or None if it is not a file of ours."""
    name = FINAL.fullmatch(file.name)
    return None if name is None else name["run"]


def _final_belongs(file: Path, newest: dict[RunId, int]) -> bool | None:
    """Returns True if the lineage contains the file, or None if it is not a file of ours."""
    name = FINAL.fullmatch(file.name)
    return None if name is None else int(name["checkpoint"]) <= newest.get(RunId(name["run"]), 0)


def _unfinished(file: Path) -> Unfinished | None:
    """Returns None if it is not a hidden file of ours, or is not there any more."""
    name = PREPARED.fullmatch(file.name)
    found = name or IN_PROGRESS.fullmatch(file.name)
    if found is None:
        return None
    try:
        size_bytes = file.stat().st_size
    except FileNotFoundError:
        return None
    return Unfinished(
        file.name,
        RunId(found["run"]),
        "hidden files",
        CheckpointId(int(name["checkpoint"])) if name else None,
        size_bytes,
    )
