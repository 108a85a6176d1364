"""The keys of `RedisHashes` on the server, and the Lua scripts that change them, step by step.

    {<prefix>}:row:<key>                     a hash per key: committed, visible
    {<prefix>}:own:owner                     pipeline, holder, attempt, and refused attempts
    {<prefix>}:own:runs                      each run's number, in the order of their starts
    {<prefix>}:own:staged:<transaction>      chunks of rows, written but not visible
    {<prefix>}:own:open                      staged transactions, and their checkpoints if prepared
    {<prefix>}:own:done                      the newest checkpoint each writer has committed
    {<prefix>}:own:index                     the run and checkpoint that wrote a row last
    {<prefix>}:own:aside, own:aside:<...>    rows that a rewind has set aside

The braces put all keys into one slot of a cluster, and no key consists of input alone. Each step is
one script, so it happens whole or not at all, and behind the fence. An error reply begins with one
of our own words: FENCED, TAKEN, FOREIGN, UNOWNED, LOST, OCCUPIED.

A score says which run and checkpoint wrote a row last: the number of the run, counted from 1, times
2^32, plus the checkpoint. So the order of scores is the order of writing, within a run and across
runs.

A writer calls some of the scripts. The driver calls the others while no writer is open, to make the
rows those of a starting point. Each call of these handles a limited number of rows, each row whole;
the sequence of calls can be interrupted and repeated.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from redis.exceptions import MovedError

from pipelines.connectors.redis.connection import client_of, place_of, redis_errors
from pipelines.connectors.sink import SinkContext, Unfinished
from pipelines.connectors.sink_bases import TransactionLost
from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder, taken

RUN_STEP = 2**32
"""The step of one run in a score; the checkpoint numbers are below it."""

CHUNK_ROWS_MAX = 2000
"""Lua passes at most about 8,000 arguments in a call, and a row takes two."""

KEYS_NAMED = """
local OWNER, RUNS, OPEN, DONE, INDEX, ASIDE = unpack(KEYS)
local BASE = string.sub(OWNER, 1, -string.len('own:owner') - 1)
local ROW, STAGED, SET_ASIDE = BASE .. 'row:', BASE .. 'own:staged:', BASE .. 'own:aside:'
"""

FENCE = (
    KEYS_NAMED
    + """
local owner = redis.call('HMGET', OWNER, 'run', 'attempt', 'closed')
if not owner[1] then return {err = 'UNOWNED nobody'} end
if owner[1] ~= ARGV[1] then return {err = 'TAKEN ' .. ARGV[1]} end
if tonumber(owner[2]) > tonumber(ARGV[2]) or tonumber(owner[3]) >= tonumber(ARGV[2]) then
  return {err = 'FENCED ' .. owner[2] .. ' ' .. owner[1]}
end
"""
)
"""ARGV: run, attempt. Refuses a replaced attempt, and a run that does not hold the prefix."""

NUMBER_RUN = """
redis.call('HSETNX', RUNS, ARGV[1], redis.call('HLEN', RUNS) + 1)
"""

LOOK = "return redis.call('HGET', KEYS[1], 'pipeline')"

WHO_HOLDS = """
return redis.call('HMGET', KEYS[1], 'run', 'epoch', 'installation', 'started_by')
"""

HOLD = """
local owner = redis.call('HMGET', KEYS[1], 'pipeline', 'run', 'epoch')
if owner[1] and owner[1] ~= ARGV[1] then return {err = 'FOREIGN ' .. owner[1]} end
if (owner[2] or '') ~= ARGV[2] or (owner[3] or '0') ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'run', ARGV[4], 'epoch', ARGV[5], 'installation', ARGV[6],
  'started_by', ARGV[7])
if owner[2] ~= ARGV[4] then redis.call('HSET', KEYS[1], 'attempt', -1, 'closed', -1) end
return 1
"""
"""ARGV: pipeline; run and epoch of the holder that was read; run, epoch, installation and person of
the next holder. Returns 0 if the prefix has another holder by now.

Does not write the pipeline's name: if it is missing, the server has lost data.
"""

ENTER = (
    KEYS_NAMED
    + """
local pipeline = redis.call('HGET', OWNER, 'pipeline')
if not pipeline then
  redis.call('HSET', OWNER, 'pipeline', ARGV[3], 'run', ARGV[1], 'attempt', -1, 'closed', -1)
elseif pipeline ~= ARGV[3] then
  return {err = 'FOREIGN ' .. pipeline}
end
"""
    + FENCE.removeprefix(KEYS_NAMED)
    + NUMBER_RUN
    + "redis.call('HSET', OWNER, 'attempt', ARGV[2])"
)
"""ARGV: run, attempt, pipeline. A writer starts; from now on, older attempts are refused."""

STAGE = (
    FENCE
    + """
redis.call('RPUSH', STAGED .. ARGV[3], ARGV[4])
redis.call('HSETNX', OPEN, ARGV[3], ARGV[2] .. ' 0 ' .. ARGV[1])
"""
)
"""ARGV: run, attempt, transaction, chunk."""

PREPARE = (
    FENCE
    + """
if redis.call('HEXISTS', OPEN, ARGV[3]) == 0 then return {err = 'LOST'} end
redis.call('HSET', OPEN, ARGV[3], ARGV[2] .. ' ' .. ARGV[4] .. ' ' .. ARGV[1])
return redis.call('LLEN', STAGED .. ARGV[3])
"""
)
"""ARGV: run, attempt, transaction, checkpoint. Returns how many chunks are staged."""

APPLY = (
    FENCE
    + """
local transaction, run, writer, checkpoint = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local chunk = redis.call('LINDEX', STAGED .. transaction, 0)
if not chunk then
  local done = tonumber(redis.call('HGET', DONE, writer) or -1)
  local is_open = redis.call('HEXISTS', OPEN, transaction) == 1
  if is_open or done < checkpoint then return {err = 'LOST'} end
  return 0
end
local number = redis.call('HGET', RUNS, run)
if not number then return {err = 'LOST'} end
local score = tonumber(number) * 4294967296 + checkpoint
local written = string.format('%.0f', score)
local unpacked = cmsgpack.unpack(chunk)
local names, keys, columns = unpacked[1], unpacked[2], unpacked[3]
local gone = unpacked[4] or {}
local function note(of)
  local scores, entries = redis.call('ZMSCORE', INDEX, unpack(of)), {}
  for row = 1, #of do
    entries[2 * row - 1], entries[2 * row] = written, of[row]
  end
  redis.call('ZADD', INDEX, 'GT', unpack(entries))
  return scores
end
if #gone > 0 then
  local before = note(gone)
  for row = 1, #gone do
    if before[row] and tonumber(before[row]) <= score then redis.call('DEL', ROW .. gone[row]) end
  end
end
local before = #keys > 0 and note(keys) or {}
for row = 1, #keys do
  if not before[row] or tonumber(before[row]) <= score then
    local key, set, missing = ROW .. keys[row], {}, {}
    for column = 1, #names do
      local value = columns[column][row]
      if value == nil then
        missing[#missing + 1] = names[column]
      else
        set[#set + 1] = names[column]
        set[#set + 1] = value
      end
    end
    local answer = redis.pcall('HSET', key, unpack(set))
    if type(answer) == 'table' and answer.err then return {err = 'OCCUPIED ' .. key} end
    if #missing > 0 then redis.call('HDEL', key, unpack(missing)) end
  end
end
redis.call('LPOP', STAGED .. transaction)
local left = redis.call('LLEN', STAGED .. transaction)
if left == 0 then
  redis.call('HDEL', OPEN, transaction)
  local done = tonumber(redis.call('HGET', DONE, writer) or -1)
  if done < checkpoint then redis.call('HSET', DONE, writer, checkpoint) end
end
return left
"""
)
"""ARGV: run, attempt, transaction, the run that prepared it, its writer, checkpoint.

Makes the first chunk visible and removes it from the list. A row that a later checkpoint has
written stays, because transactions of one run may be committed in any order. For the same reason
the index keeps a row that is deleted.
"""

DROP_LEFT_OVER = """
restored = tonumber(redis.call('HGET', OWNER, 'restored') or '')
local open = redis.call('HGETALL', OPEN)
for i = 1, #open, 2 do
  local attempt, checkpoint, run = string.match(open[i + 1], '^(%S+) (%S+) (.*)$')
  attempt, checkpoint = tonumber(attempt), tonumber(checkpoint)
  if is_left_over(attempt, checkpoint, run) then
    redis.call('DEL', STAGED .. open[i])
    redis.call('HDEL', OPEN, open[i])
  end
end
"""

SWEEP = (
    FENCE
    + """
local restored
local function is_left_over(attempt, checkpoint, run)
  local is_behind = checkpoint == 0 or restored and checkpoint > restored
  return run == ARGV[1] and attempt < tonumber(ARGV[2]) and is_behind
end
"""
    + DROP_LEFT_OVER
)
"""ARGV: run, attempt. Drops what the run's older attempts staged after its starting point."""


BEGIN = (
    KEYS_NAMED
    + """
local owner = redis.call('HMGET', OWNER, 'pipeline', 'run', 'attempt')
if not owner[1] and ARGV[4] == 'known' then return {err = 'LOST'} end
if owner[1] and owner[1] ~= ARGV[3] then return {err = 'FOREIGN ' .. owner[1]} end
if owner[2] and owner[2] ~= ARGV[1] then return {err = 'TAKEN ' .. ARGV[1]} end
local attempt = owner[2] == ARGV[1] and owner[3] or -1
redis.call('HSET', OWNER, 'pipeline', ARGV[3], 'run', ARGV[1], 'restored', ARGV[2],
  'attempt', attempt, 'closed', attempt)
"""
    + NUMBER_RUN
    + "return redis.call('HGETALL', RUNS)"
)
"""ARGV: run, restored checkpoint, pipeline, and `known` if the run has written before.

The run must hold the prefix, or no run may hold it. From now on, every attempt that has entered so
far is refused. Returns the numbers of the runs.
"""

_REWINDING = (
    KEYS_NAMED
    + """
local run = redis.call('HGET', OWNER, 'run')
if not run then return {err = 'UNOWNED nobody'} end
if run ~= ARGV[1] then return {err = 'TAKEN ' .. ARGV[1]} end
"""
)

DROP_UNFINISHED = (
    _REWINDING
    + """
local restored
local function is_left_over(attempt, checkpoint, run)
  return checkpoint == 0 or run == ARGV[1] and checkpoint > restored
end
"""
    + DROP_LEFT_OVER
)
"""ARGV: run. Drops what no writer will finish, and what the run prepared behind its start."""

UNFINISHED = (
    KEYS_NAMED
    + """
local open, found = redis.call('HGETALL', OPEN), {}
for i = 1, #open, 2 do
  local size = redis.pcall('MEMORY', 'USAGE', STAGED .. open[i])
  found[#found + 1] = {open[i], open[i + 1], type(size) == 'number' and size or -1}
end
return found
"""
)
"""Returns each staged transaction, its entry in `open`, and its size in bytes; -1: not known."""

DISCARD_STAGED = (
    _REWINDING
    + """
local count = 0
for i = 2, #ARGV do
  if redis.call('HDEL', OPEN, ARGV[i]) == 1 then
    redis.call('DEL', STAGED .. ARGV[i])
    count = count + 1
  end
end
return count
"""
)
"""ARGV: run, transactions. Returns how many were staged."""

SET_ASIDE = (
    _REWINDING
    + """
local found = redis.call('ZRANGE', INDEX, ARGV[2], ARGV[3], 'BYSCORE', 'LIMIT', 0, ARGV[4],
  'WITHSCORES')
for i = 1, #found, 2 do
  local member = string.format('%.0f', tonumber(found[i + 1])) .. ':' .. found[i]
  if redis.call('EXISTS', ROW .. found[i]) == 1 then
    redis.call('RENAME', ROW .. found[i], SET_ASIDE .. member)
    redis.call('ZADD', ASIDE, found[i + 1], member)
  end
  redis.call('ZREM', INDEX, found[i])
end
return #found / 2
"""
)
"""ARGV: run, lowest and highest score, how many at most. Returns how many."""

DISCARD = (
    _REWINDING
    + """
local count = 0
for _, place in ipairs({{INDEX, ROW}, {ASIDE, SET_ASIDE}}) do
  local found = redis.call('ZRANGE', place[1], ARGV[2], ARGV[3], 'BYSCORE', 'LIMIT', 0, ARGV[4])
  for _, member in ipairs(found) do
    redis.call('DEL', place[2] .. member)
    redis.call('ZREM', place[1], member)
  end
  count = count + #found
end
return count
"""
)
"""ARGV: as for SET_ASIDE. Deletes rows, visible and set aside."""

BRING_BACK = (
    _REWINDING
    + """
local found = redis.call('ZRANGE', ASIDE, ARGV[2], ARGV[3], 'BYSCORE', 'LIMIT', ARGV[5], ARGV[4],
  'WITHSCORES')
local stayed = 0
for i = 1, #found, 2 do
  local key = string.sub(found[i], string.find(found[i], ':', 1, true) + 1)
  local shown = redis.call('ZSCORE', INDEX, key)
  if shown and tonumber(shown) > tonumber(found[i + 1]) then
    stayed = stayed + 1
  else
    if shown and redis.call('EXISTS', ROW .. key) == 1 then
      local member = string.format('%.0f', tonumber(shown)) .. ':' .. key
      redis.call('RENAME', ROW .. key, SET_ASIDE .. member)
      redis.call('ZADD', ASIDE, shown, member)
    end
    redis.call('RENAME', SET_ASIDE .. found[i], ROW .. key)
    redis.call('ZADD', INDEX, found[i + 1], key)
    redis.call('ZREM', ASIDE, found[i])
  end
end
return {#found / 2, stayed}
"""
)
"""ARGV: as for SET_ASIDE, and how many to skip. Of two rows of one key the later one is shown.

Returns how many were looked at, and how many of them stayed aside.
"""


PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")
OWN = ("owner", "runs", "open", "done", "index", "aside")
REWIND_ROWS = 1000
HOLD_TRIES = 3
"""A second try finds the holder that came in between."""

OLDEST_SERVER = (6, 2)
LOST_FOR_GOOD = 2**53
"""Above every score."""


class RedisHashStore:
    """One connection; used by one thread, closed by it."""

    def __init__(self, url: str, prefix: str) -> None:
        """Raises Rejected if the prefix or the address is not valid."""
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
        """Raises Rejected if the server is too old or may evict keys, or the prefix is taken."""
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
        owner = self._run(LOOK)
        if owner is not None and owner.decode() != pipeline:
            raise self._foreign(owner.decode())

    @property
    def description(self) -> str:
        return f"the prefix {self._prefix} of the Redis server {place_of(self._client)}"

    def holder(self) -> Holder | None:
        run, *rest = self._run(WHO_HOLDS)
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
        """Makes the claim's run the holder. Raises TargetTaken."""
        for _ in range(HOLD_TRIES):
            found = self.holder()
            held = claim.admit(found, self.description)
            before = (found.run_id, found.epoch) if found else ("", 0)
            after = (held.run_id, held.epoch, held.installation, held.started_by)
            if self._run(HOLD, pipeline, *before, *after):
                return
        raise Retryable(f"the holder of {self.description} keeps changing")

    def enter(self, context: SinkContext, pipeline: str) -> None:
        """Raises ProtocolError if this attempt has been replaced, TargetTaken if its run has."""
        self._run(ENTER, context.run_id, context.attempt, pipeline)

    def stage(self, context: SinkContext, transaction: str, chunk: bytes) -> None:
        self._run(STAGE, context.run_id, context.attempt, transaction, chunk)

    def prepare(self, context: SinkContext, transaction: str, checkpoint_id: CheckpointId) -> int:
        """Returns how many chunks were staged for the transaction."""
        who = (context.run_id, context.attempt)
        return int(self._run(PREPARE, *who, transaction, checkpoint_id))

    def apply(self, context: SinkContext, steps: Iterable[tuple[object, ...]]) -> None:
        """Applies steps (transaction, its run, its writer, its checkpoint), one chunk per step.

        Raises TransactionLost.
        """
        with self._translating():
            pipe = self._client.pipeline(transaction=False)
            script = self._client.register_script(APPLY)
            for step in steps:
                args = [context.run_id, context.attempt, *step]
                script(keys=self._keys, args=args, client=pipe)
            for answer in pipe.execute(raise_on_error=False):
                if isinstance(answer, Exception):
                    raise answer

    def sweep(self, context: SinkContext) -> None:
        self._run(SWEEP, context.run_id, context.attempt)

    def unfinished(self) -> list[Unfinished]:
        """Lists what all runs have staged. A list that `open` does not name is not of this sink."""
        found = []
        for transaction, opened, size in self._run(UNFINISHED):
            _, checkpoint, run = opened.decode().split(" ", 2)
            prepared_for = CheckpointId(int(checkpoint)) if int(checkpoint) else None
            size_bytes = int(size) if int(size) >= 0 else None
            name = transaction.decode()
            found.append(Unfinished(name, RunId(run), "staged lists", prepared_for, size_bytes))
        return found

    def discard_staged(self, names: Collection[str], run_id: RunId) -> int:
        """Returns how many were staged. Raises TargetTaken."""
        left, count = iter(names), 0
        while some := list(itertools.islice(left, REWIND_ROWS)):
            count += int(self._run(DISCARD_STAGED, run_id, *some))
        return count

    def rewind(self, newest: Mapping[RunId, int], run_id: RunId, pipeline: str) -> int:
        """Returns how many rows of other runs it set aside. Can be repeated after an interruption.

        Raises TransactionLost if the server has forgotten what this run has written.
        """
        is_known = "known" if run_id in newest else "new"
        answer = self._run(BEGIN, run_id, newest.get(run_id, 0), pipeline, is_known)
        numbers = {RunId(run.decode()): int(n) for run, n in _pairs(answer)}
        self._run(DROP_UNFINISHED, run_id)
        ours = numbers[run_id] * RUN_STEP
        behind = (ours + newest.get(run_id, 0) + 1, ours + RUN_STEP - 1)
        self._while_full(DISCARD, run_id, behind)
        kept = sorted(
            (numbers[run] * RUN_STEP + 1, numbers[run] * RUN_STEP + checkpoint)
            for run, checkpoint in newest.items()
            if run in numbers and checkpoint > 0
        )
        count = sum(self._while_full(SET_ASIDE, run_id, gap) for gap in _gaps(kept))
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
            looked_at, stayed = self._run(BRING_BACK, run_id, *scores, REWIND_ROWS, skipped)
            skipped += stayed

    def _run(self, script: str, *args: object) -> Any:
        with self._translating():
            return self._client.register_script(script)(keys=self._keys, args=list(args))

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Raises Retryable, Rejected, ProtocolError or TransactionLost, as the server says."""
        try:
            with redis_errors(self._client, f"to write hashes under {self._prefix}"):
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
    """Yields the ranges of scores between the ascending ranges in `kept`."""
    start = 1
    for lowest, highest in kept:
        if start < lowest:
            yield start, lowest - 1
        start = highest + 1
    yield start, LOST_FOR_GOOD
