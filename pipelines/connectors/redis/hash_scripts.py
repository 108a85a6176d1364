"""The Lua scripts of a writer of `RedisHashes`; each runs as one atomic step behind the fence.

`redis.hash_store` explains the keys. An error reply begins with one of our own words: FENCED,
TAKEN, FOREIGN, UNOWNED, LOST, OCCUPIED.

A score says which run and checkpoint wrote a row last: the number of the run, counted from 1, times
2^32, plus the checkpoint. So the order of scores is the order of writing, within a run and across
runs.
"""

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
"""ARGV: run, attempt. Refuses an attempt that has been replaced, and a run that holds nothing."""

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
the next holder. Returns 0 if another one holds the prefix by now.

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
local before = redis.call('ZMSCORE', INDEX, unpack(keys))
local entries = {}
for row = 1, #keys do
  entries[2 * row - 1], entries[2 * row] = written, keys[row]
end
redis.call('ZADD', INDEX, 'GT', unpack(entries))
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
written stays, because transactions of one run may be committed in any order.
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
