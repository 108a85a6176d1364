"""The keys of `RedisHashes` on the server, and every step that changes them.

    {<prefix>}:row:<key>                     a hash per key: committed, visible
    {<prefix>}:own:owner                     pipeline, holder, attempt, and who is refused
    {<prefix>}:own:runs                      each run's number, in the order of their starts
    {<prefix>}:own:staged:<transaction>      chunks of rows, written but not visible
    {<prefix>}:own:open                      staged transactions, and what they are prepared for
    {<prefix>}:own:done                      the newest checkpoint each writer has committed
    {<prefix>}:own:index                     which run and checkpoint wrote a row last
    {<prefix>}:own:aside, own:aside:<...>    rows that a rewind has set aside

The braces make one slot of a cluster of all of it, and no key is made of input alone. Each step is
one script, so it happens whole or not at all, and behind the fence; see `redis.hash_scripts`
and `redis.rewind_scripts`.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import MovedError

from pipelines.connectors.redis import hash_scripts as rewinding
from pipelines.connectors.redis import hash_scripts as scripts
from pipelines.connectors.redis.connection import asking, client_of, place_of
from pipelines.connectors.sink import SinkContext, Unfinished
from pipelines.connectors.two_phase_commit import TransactionLost
from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder, taken

PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")
OWN = ("owner", "runs", "open", "done", "index", "aside")
REWIND_ROWS = 1000
HOLD_TRIES = 3
"""A second one finds who came in between."""

OLDEST_SERVER = (6, 2)
LOST_FOR_GOOD = 2**53
"""Above every score."""


class RedisHashStore:
    """One connection; used by one thread, closed by it."""

    def __init__(self, url: str, prefix: str) -> None:
        """Raises Rejected: the prefix or the address is none."""
        if not PREFIX.fullmatch(prefix):
            raise Rejected(
                "The prefix of Redis hashes consists of up to 200 letters, digits and any of"
                f" _ . : / -, not {prefix[:50]!r}."
            )
        self._client = client_of(url)
        self._prefix = prefix
        self._keys = [f"{{{prefix}}}:own:{name}" for name in OWN]

    def close(self) -> None:
        self._client.close()

    def check(self, pipeline: str) -> None:
        """Raises Rejected: too old, may drop keys by itself, or the prefix is another's."""
        with self._translating():
            server: dict[str, Any] = self._client.info("server")
            memory: dict[str, Any] = self._client.info("memory")
        version = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
        if version < OLDEST_SERVER:
            raise Rejected(f"The Redis server is of version {server['redis_version']}; use 6.2.")
        if memory.get("maxmemory") and str(memory.get("maxmemory_policy")).startswith("allkeys"):
            raise Rejected(
                "The Redis server may evict output when memory is short (maxmemory-policy"
                f" {memory['maxmemory_policy']}); use noeviction."
            )
        owner = self._run(scripts.LOOK)
        if owner is not None and owner.decode() != pipeline:
            raise self._foreign(owner.decode())

    @property
    def description(self) -> str:
        return f"the prefix {self._prefix} of the Redis server {place_of(self._client)}"

    def holder(self) -> Holder | None:
        run, *rest = self._run(scripts.WHO_HOLDS)
        if run is None:
            return None
        epoch, installation, started_by = (b"" if each is None else each for each in rest)
        return Holder(
            run_id=RunId(run.decode()),
            epoch=int(epoch or 0),
            installation=installation.decode(),
            started_by=started_by.decode(),
        )

    def hold(self, claim: Claim, pipeline: str) -> None:
        """Raises TargetTaken."""
        for _ in range(HOLD_TRIES):
            found = self.holder()
            held = claim.admit(found, self.description)
            before = (found.run_id, found.epoch) if found else ("", 0)
            after = (held.run_id, held.epoch, held.installation, held.started_by)
            if self._run(scripts.HOLD, pipeline, *before, *after):
                return
        raise Retryable(f"the holder of {self.description} keeps changing")

    def enter(self, context: SinkContext, pipeline: str) -> None:
        """Raises ProtocolError when this attempt has been replaced already, TargetTaken when its
        run has been."""
        self._run(scripts.ENTER, context.run_id, context.attempt, pipeline)

    def stage(self, context: SinkContext, transaction: str, chunk: bytes) -> None:
        self._run(scripts.STAGE, context.run_id, context.attempt, transaction, chunk)

    def prepare(self, context: SinkContext, transaction: str, checkpoint_id: CheckpointId) -> int:
        """How many chunks were staged for it."""
        who = (context.run_id, context.attempt)
        return int(self._run(scripts.PREPARE, *who, transaction, checkpoint_id))

    def apply(self, context: SinkContext, steps: Iterable[tuple[object, ...]]) -> None:
        """Steps (transaction, its run, its writer, its checkpoint), each a chunk, in one go.

        Raises TransactionLost.
        """
        with self._translating():
            pipe = self._client.pipeline(transaction=False)
            script = self._client.register_script(scripts.APPLY)
            for step in steps:
                args = [context.run_id, context.attempt, *step]
                script(keys=self._keys, args=args, client=pipe)
            for answer in pipe.execute(raise_on_error=False):
                if isinstance(answer, Exception):
                    raise answer

    def sweep(self, context: SinkContext) -> None:
        self._run(scripts.SWEEP, context.run_id, context.attempt)

    def unfinished(self) -> list[Unfinished]:
        """What is staged, of all runs. A list that no entry of `open` names is not of this sink."""
        found = []
        for transaction, opened, size in self._run(rewinding.UNFINISHED):
            _, checkpoint, run = opened.decode().split(" ", 2)
            prepared_for = CheckpointId(int(checkpoint)) if int(checkpoint) else None
            size_bytes = int(size) if int(size) >= 0 else None
            name = transaction.decode()
            found.append(Unfinished(name, RunId(run), "staged lists", prepared_for, size_bytes))
        return found

    def discard_staged(self, names: Collection[str], run_id: RunId) -> int:
        """Raises TargetTaken."""
        left, count = iter(names), 0
        while some := list(itertools.islice(left, REWIND_ROWS)):
            count += int(self._run(rewinding.DISCARD_STAGED, run_id, *some))
        return count

    def rewind(self, newest: Mapping[RunId, int], run_id: RunId, pipeline: str) -> int:
        """How many rows of other runs were set aside. Can be repeated after an interruption.

        Raises Rejected when the server has forgotten what this run has written.
        """
        is_known = "known" if run_id in newest else "new"
        answer = self._run(rewinding.BEGIN, run_id, newest.get(run_id, 0), pipeline, is_known)
        numbers = {RunId(run.decode()): int(n) for run, n in _pairs(answer)}
        self._run(rewinding.DROP_UNFINISHED, run_id)
        ours = numbers[run_id] * scripts.RUN_STEP
        behind = (ours + newest.get(run_id, 0) + 1, ours + scripts.RUN_STEP - 1)
        self._while_full(rewinding.DISCARD, run_id, behind)
        kept = sorted(
            (numbers[run] * scripts.RUN_STEP + 1, numbers[run] * scripts.RUN_STEP + checkpoint)
            for run, checkpoint in newest.items()
            if run in numbers and checkpoint > 0
        )
        count = sum(self._while_full(rewinding.SET_ASIDE, run_id, gap) for gap in _gaps(kept))
        for belonging in kept:
            self._bring_back(run_id, belonging)
        return count

    def _while_full(self, script: str, run_id: RunId, scores: tuple[int, int]) -> int:
        total = 0
        while found := int(self._run(script, run_id, *scores, REWIND_ROWS)):
            total += found
        return total

    def _bring_back(self, run_id: RunId, scores: tuple[int, int]) -> None:
        skipped, looked_at = 0, 1
        while looked_at:
            looked_at, stayed = self._run(
                rewinding.BRING_BACK, run_id, *scores, REWIND_ROWS, skipped
            )
            skipped += stayed

    def _run(self, script: str, *args: object) -> Any:
        with self._translating():
            return self._client.register_script(script)(keys=self._keys, args=list(args))

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Raises Retryable, Rejected, ProtocolError or TransactionLost, as the server says."""
        try:
            with asking(self._client, f"to write hashes under {self._prefix}"):
                yield
        except MovedError as error:
            raise Rejected(
                f"The slot of {{{self._prefix}}} in the Redis cluster is not on"
                f" {place_of(self._client)}; give the address of the server that holds it."
            ) from error
        except redis.ResponseError as error:
            raise self._meaning(str(error)) from error

    def _meaning(self, answer: str) -> Exception:
        word, _, rest = answer.partition(" ")
        match word:
            case "FENCED":
                attempt, _, run = rest.partition(" ")
                return ProtocolError(
                    f"this attempt may not write under {self._prefix} any more: attempt {attempt}"
                    f" of run {run} does"
                )
            case "TAKEN":
                unknown = Holder(run_id=RunId("unknown"))
                return taken(self.description, RunId(rest), self.holder() or unknown)
            case "FOREIGN":
                return self._foreign(rest)
            case "LOST":
                return TransactionLost(
                    f"the Redis server {place_of(self._client)} has lost it",
                    on_restore="rows that came after it are set aside on the server and written"
                    " again",
                )
            case "OCCUPIED":
                return Rejected(f"The Redis key {rest} is no hash; delete or rename it.")
            case "UNOWNED":
                return Retryable(
                    f"the Redis server {place_of(self._client)} has lost whose {self._prefix} is"
                )
            case "WRONGTYPE":
                return Rejected(
                    f"A Redis key that begins with {{{self._prefix}}}:own: was not made by this"
                    " sink; choose another prefix."
                )
        return Retryable(f"the Redis server {place_of(self._client)} refused a write: {answer}")

    def _foreign(self, owner: str) -> Rejected:
        return Rejected(
            f"The prefix {self._prefix} of the Redis server belongs to pipeline {owner}; choose"
            " another one."
        )


def _pairs(answer: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(answer[::2], answer[1::2], strict=True)


def _gaps(kept: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The scores between ranges that ascend."""
    start = 1
    for lowest, highest in kept:
        if start < lowest:
            yield start, lowest - 1
        start = highest + 1
    yield start, LOST_FOR_GOOD
