-- Holds under several limits, all or none. The same as billing/limit_table.py.
--
-- KEYS     1: the member ("held" or "settled"); then per limit, of a budget per window: a hash
--          (level, at, spent, held), a sorted set (member -> end), a hash (member -> amount);
--          last: since when this store has forgotten nothing
-- ARGV     reserve | settle | renew | look, member, ttl (us), keep settled (ms), then per limit:
--          rate | concurrency | budget, most, amount, seen, used, keep (ms)
-- Returns  the place of the limit that refused or 0, the last key, then per limit what is left, the time
--          until what was asked for is there (us), what is spent, and 1 if it was forgotten
--          here, or less was known than was seen
--
-- common.lua goes before it.

local op, member, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local keep_settled_ms = ARGV[4]
local count = (#KEYS - 2) / 3
local MINUTE = 60000000

local function number(value)  -- what is no number of ours is as if it were not there
  local n = tonumber(value or '')
  if n and math.abs(n) < 2 ^ 63 then return n end  -- not nan, not inf
end

local status = redis.call('GET', KEYS[1])
local life = whole(redis.call('GET', KEYS[#KEYS]))
if not life then
  life = now
  redis.call('SET', KEYS[#KEYS], text(life))
end

local limits = {}
for i = 1, count do
  local a = 4 + 6 * (i - 1)
  local l = {
    key = KEYS[3 * i - 1], holds = KEYS[3 * i], amounts = KEYS[3 * i + 1],
    type = ARGV[a + 1], most = tonumber(ARGV[a + 2]), amount = tonumber(ARGV[a + 3]),
    seen = tonumber(ARGV[a + 4]), used = tonumber(ARGV[a + 5]), keep_ms = ARGV[a + 6],
  }
  local stored = redis.call('HMGET', l.key, 'level', 'at', 'spent', 'held')
  if l.type == 'rate' then
    local at = number(stored[2]) or now
    local level = number(stored[1]) or l.most
    l.level = math.min(l.most, level + l.most * math.max(0, now - at) / MINUTE)
    l.asked = math.min(l.amount, l.most)
  else
    l.held = number(stored[4]) or 0
    for _, ended in ipairs(redis.call('ZRANGEBYSCORE', l.holds, '-inf', text(now))) do
      l.held = l.held - (number(redis.call('HGET', l.amounts, ended)) or 0)
      redis.call('HDEL', l.amounts, ended)
      redis.call('ZREM', l.holds, ended)
    end
    l.spent = number(stored[3]) or 0
    l.restored = not number(stored[3]) or l.spent < l.seen
    l.spent = math.max(l.spent, l.seen)
  end
  limits[i] = l
end

local function write()
  for _, l in ipairs(limits) do
    if l.type == 'rate' then
      redis.call('HSET', l.key, 'level', string.format('%.17g', l.level), 'at', text(now))
    else
      redis.call('HSET', l.key, 'spent', text(l.spent), 'held', text(l.held))
      redis.call('PEXPIRE', l.holds, l.keep_ms)
      redis.call('PEXPIRE', l.amounts, l.keep_ms)
    end
    redis.call('PEXPIRE', l.key, l.keep_ms)
  end
end

local function release(l)
  local amount = redis.call('HGET', l.amounts, member)
  if amount then
    l.held = l.held - (number(amount) or 0)
    redis.call('HDEL', l.amounts, member)
    redis.call('ZREM', l.holds, member)
  end
end

local function answer(refused)
  local reply = {refused, text(life)}
  for _, l in ipairs(limits) do
    local left, wait, spent
    if l.type == 'rate' then
      left, spent = math.floor(l.level), 0
      local missing = refused > 0 and l.asked - l.level or 0
      wait = l.most > 0 and math.max(0, missing) * MINUTE / l.most or MINUTE
    else
      left, wait, spent = l.most - l.spent - l.held, 0, l.spent
    end
    reply[#reply + 1] = text(math.max(0, left))
    reply[#reply + 1] = text(wait)
    reply[#reply + 1] = text(spent)
    reply[#reply + 1] = l.restored and '1' or '0'
  end
  return reply
end

if op == 'look' then return answer(0) end

if op == 'reserve' then
  if status then
    write()
    return answer(0)
  end
  for i, l in ipairs(limits) do
    local fits
    if l.type == 'rate' then
      fits = l.most > 0 and l.level >= l.asked
    else
      fits = l.spent + l.held + l.amount <= l.most
    end
    if not fits then
      write()
      return answer(i)
    end
  end
  for _, l in ipairs(limits) do
    if l.type == 'rate' then
      l.level = l.level - l.asked
    else
      l.held = l.held + l.amount
      redis.call('ZADD', l.holds, text(now + ttl), member)
      redis.call('HSET', l.amounts, member, text(l.amount))
    end
  end
  write()
  redis.call('SET', KEYS[1], 'held', 'PX', text(ttl / 1000))
  return answer(0)
end

if op == 'renew' then
  if status ~= 'settled' then  -- also one that was forgotten: its request runs
    redis.call('SET', KEYS[1], 'held', 'PX', text(ttl / 1000))
    for _, l in ipairs(limits) do
      if l.type ~= 'rate' then
        release(l)
        l.held = l.held + l.amount
        redis.call('ZADD', l.holds, text(now + ttl), member)
        redis.call('HSET', l.amounts, member, text(l.amount))
      end
    end
  end
  write()
  return answer(0)
end

if status ~= 'settled' then
  for _, l in ipairs(limits) do
    if l.type == 'rate' then
      l.level = math.min(l.most, l.level + l.asked - l.used)
    else
      release(l)
      if l.type == 'budget' then l.spent = l.spent + l.used end
    end
  end
  redis.call('SET', KEYS[1], 'settled', 'PX', keep_settled_ms)
end
write()
return answer(0)
