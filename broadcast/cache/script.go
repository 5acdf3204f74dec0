package cache

import "github.com/redis/go-redis/v9"

// place begins the scripts that move a topic: nothing happens unless the cache
// stands where the batch begins. An empty state reads as two empty texts.
const place = `
local at = redis.call('HMGET', KEYS[1], 'incarnation', 'offset')
local incarnation, offset = at[1] or '', at[2] or ''
if incarnation ~= ARGV[1] or offset ~= ARGV[2] then
  return {'moved', incarnation, offset}
end
`

// scriptApply does a batch of sets and deletes. All comparisons are of texts of
// fixed length.
//
//	KEYS  state, flush, then value and meta of each change
//	ARGV  from: incarnation, offset
//	      count of fields to set in the state, then name and value of each
//	      count of fields to drop, then their names
//	      then for each change: key, rank, set|old|gone, value,
//	      time to live, time to keep the rank beside a value, and beside none
var scriptApply = redis.NewScript(place + `
local n = 3
local function arg() n = n + 1; return ARGV[n] end
local set, drop = {}, {}
for i = 1, 2 * tonumber(ARGV[3]) do set[i] = arg() end
for i = 1, tonumber(arg()) do drop[i] = arg() end

local generation, lengths, seen = {}, {}, {}
if #KEYS > 2 then
  local spaces = redis.call('HGETALL', KEYS[2])
  for i = 1, #spaces, 2 do
    generation[spaces[i]] = string.sub(spaces[i + 1], 1, 20)
    local length = #spaces[i]
    if not seen[length] then
      seen[length] = true
      lengths[#lengths + 1] = length
    end
  end
end
local function flushed(key, version)
  for _, length in ipairs(lengths) do
    local g = #key >= length and generation[string.sub(key, 1, length)]
    if g and g >= version then return true end
  end
  return false
end

local applied, superseded = 0, 0
for i = 3, #KEYS, 2 do
  local key, rank, what, value, ttl, keep, horizon = arg(), arg(), arg(), arg(), arg(), arg(), arg()
  local have = redis.pcall('GET', KEYS[i + 1])
  if type(have) ~= 'string' or #have ~= #rank then have = false end
  if (have and have >= rank) or flushed(key, string.sub(rank, 1, 20)) then
    superseded = superseded + 1
  else
    if what == 'set' or (what == 'old' and have) then
      if ttl == '0' then redis.call('SET', KEYS[i], value) else redis.call('SET', KEYS[i], value, 'PX', ttl) end
      if keep == '0' then redis.call('SET', KEYS[i + 1], rank) else redis.call('SET', KEYS[i + 1], rank, 'PX', keep) end
    else
      redis.call('DEL', KEYS[i])
      redis.call('SET', KEYS[i + 1], rank, 'PX', horizon)
    end
    applied = applied + 1
  end
end
redis.call('HSET', KEYS[1], unpack(set))
if #drop > 0 then redis.call('HDEL', KEYS[1], unpack(drop)) end
return {'done', applied, superseded}
`)

// scriptGeneration raises the generation of a namespace.
//
//	KEYS  state, flush
//	ARGV  from: incarnation, offset; prefix, version, now, forget before, most namespaces
var scriptGeneration = redis.NewScript(place + `
local have = redis.call('HGET', KEYS[2], ARGV[3])
if have and string.sub(have, 1, 20) >= ARGV[4] then
  return {'done', 0, 1}
end
if not have and redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[7]) then
  local spaces = redis.call('HGETALL', KEYS[2])
  local before, oldest, at = tonumber(ARGV[6]), nil, nil
  for i = 1, #spaces, 2 do
    local when = tonumber(string.sub(spaces[i + 1], 22)) or 0
    if when < before then redis.call('HDEL', KEYS[2], spaces[i]) end
    if not at or when < at then oldest, at = spaces[i], when end
  end
  if oldest then redis.call('HDEL', KEYS[2], oldest) end
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4] .. ' ' .. ARGV[5])
return {'done', 1, 0}
`)

// scriptSweep drops a chunk of keys.
//
//	KEYS  meta and value of each key
//	ARGV  version up to which rank and value go; empty: all values go, and their
//	      ranks with the horizon, the second argument
var scriptSweep = redis.NewScript(`
for i = 1, #KEYS, 2 do
  local rank = redis.call('GET', KEYS[i])
  if rank and ARGV[1] == '' then
    redis.call('DEL', KEYS[i + 1])
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  elseif rank and string.sub(rank, 1, 20) <= ARGV[1] then
    redis.call('DEL', KEYS[i], KEYS[i + 1])
  end
end
return 1
`)
