"""The Lua scripts by which `RedisHashes` makes its rows those of a starting point.

Called by the driver while nobody writes. Each does at most so many rows, whole; together they can
be interrupted and repeated. Scores and words are those of `redis.hash_scripts`.
"""

from pipelines.connectors.redis.hash_scripts import DROP_LEFT_OVER, KEYS_NAMED, NUMBER_RUN

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
"""ARGV: run, restored checkpoint, pipeline, whether the run has written before. The run holds the
prefix, or nobody does.

Every attempt that has entered so far is refused from now on. Returns the numbers of the runs.
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
"""ARGV: run. Drops what nobody goes on writing, and what the run prepared behind its start."""

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
"""Returns each staged transaction, what `open` says of it, and its bytes; -1: not known."""

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
    if shown then
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
