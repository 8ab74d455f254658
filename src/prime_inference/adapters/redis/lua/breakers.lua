-- All changes of shared breakers, and reading them. The same as adapters/memory/breaker_table.py;
-- docs/reliability.md, "Breakers", has the states and the reasons.
--
-- KEYS[1]  hash of all breakers: ~latest, ~version, ~beat, and a JSON record per deployment
-- ARGV[1]  what to do; the rest depends on it:
--   trip      channel, keep (ms), forget closed (us), deployment, epoch, cause, base, cap, forget (us)
--   probe     channel, keep (ms), forget closed (us), deployment, owner, ttl (us), tickets
--   conclude  channel, keep (ms), forget closed (us), deployment, owner, epoch, verdict, answers,
--             base, cap, forget (us)
--   read      channel, keep (ms), forget closed (us), known version, between two beats (us)
-- Returns  a record (trip, conclude), granted and a record (probe), or the last beat, and version
--          and records if the version is not the known one (read);
--          a record is deployment, state, epoch, remaining (us), cause, trips
--
-- common.lua goes before it.

local key, op, channel = KEYS[1], ARGV[1], ARGV[2]
local keep_ms, forget_closed = ARGV[3], tonumber(ARGV[4])

-- what is further from now than any of ours is not ours: it would eject for good
local HOUR, YEAR = 3600e6, 365 * 24 * 3600e6

-- how far the clock was ahead of now when the last change was written
local ahead = math.max(0, (whole(redis.call('HGET', key, '~latest')) or now) - now)

local function decode(value)
  local ok, breaker = pcall(cjson.decode, value)
  if not ok or type(breaker) ~= 'table' or type(breaker.tickets) ~= 'table' then return nil end
  for _, name in ipairs({'epoch', 'open_until', 'closed_at', 'trips', 'answers'}) do
    breaker[name] = whole(breaker[name])
    if breaker[name] == nil then return nil end
  end
  if breaker.open_until > now + ahead + HOUR or breaker.epoch > now + YEAR then return nil end
  local known = breaker.state == 'closed' or breaker.state == 'open' or breaker.state == 'half_open'
  local causes = {consecutive = true, unreachable = true, rate = true}
  if not known or not causes[breaker.cause] then return nil end
  for owner, deadline in pairs(breaker.tickets) do
    deadline = whole(deadline)
    breaker.tickets[owner] = deadline and deadline <= now + ahead + HOUR and deadline or nil
  end
  return breaker
end

local function save(name, breaker)
  local tickets = {}
  for owner, deadline in pairs(breaker.tickets) do tickets[owner] = text(deadline) end
  redis.call('HSET', key, 'd:' .. name, cjson.encode({
    state = breaker.state, epoch = text(breaker.epoch), open_until = text(breaker.open_until),
    closed_at = text(breaker.closed_at), cause = breaker.cause, trips = breaker.trips,
    answers = breaker.answers, tickets = tickets,
  }))
end

local function load(name)
  local value = redis.call('HGET', key, 'd:' .. name)
  return value and decode(value) or nil  -- what is not ours is as if it were not there
end

local function each(visit)
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 'd:' then
      local breaker = decode(fields[i + 1])
      if breaker then visit(string.sub(fields[i], 3), breaker) end
    end
  end
end

-- steps of the clock backwards move all times back with it
if ahead > 0 then
  each(function(name, breaker)
    breaker.open_until = math.max(0, breaker.open_until - ahead)
    breaker.closed_at = math.max(0, breaker.closed_at - ahead)
    for owner, deadline in pairs(breaker.tickets) do
      breaker.tickets[owner] = math.max(0, deadline - ahead)
    end
    save(name, breaker)
  end)
  ahead = 0
end
local version = whole(redis.call('HGET', key, '~version')) or 0
if version > now + YEAR then version = 0 end

local function record(name, breaker)
  if not breaker then return {name, 'closed', '0', '0', 'consecutive', 0} end
  local remaining = breaker.state == 'open' and math.max(0, breaker.open_until - now) or 0
  return {name, breaker.state, text(breaker.epoch), text(remaining), breaker.cause, breaker.trips}
end

local function change(name, breaker, state)
  -- microseconds of the clock: a store that was emptied goes on with higher epochs
  version = math.max(version + 1, now)
  breaker.epoch, breaker.state = version, state
  save(name, breaker)
  redis.call('HSET', key, '~version', text(version))
  redis.call('PUBLISH', channel, cjson.encode(record(name, breaker)))
end

local function open(name, breaker, base, cap, forget)
  if breaker.state == 'closed' and now - breaker.closed_at > forget then breaker.trips = 0 end
  breaker.open_until = now + math.min(base * 2 ^ math.min(breaker.trips, 20), cap)
  breaker.trips = breaker.trips + 1
  breaker.tickets = {}
  change(name, breaker, 'open')
end

local function written()
  redis.call('HSET', key, '~latest', text(now))
  redis.call('PEXPIRE', key, keep_ms)  -- hours: far above the longest open time or ticket
end

if op == 'read' then
  -- a sign of life on the channel, for whoever reads: what it does not hear does not reach it
  local beat = whole(redis.call('HGET', key, '~beat')) or 0
  if beat > now or now - beat >= tonumber(ARGV[6]) then
    beat = now
    redis.call('HSET', key, '~beat', text(beat))
    redis.call('PEXPIRE', key, keep_ms)
    redis.call('PUBLISH', channel, text(beat))
  end
  if text(version) == ARGV[5] then return {text(beat)} end
  local answer = {text(beat), text(version)}
  each(function(name, breaker) answer[#answer + 1] = record(name, breaker) end)
  return answer
end

local name = ARGV[5]
local breaker = load(name)
written()

if op == 'trip' then
  if not breaker then
    each(function(other, old)
      if old.state == 'closed' and now - old.closed_at >= forget_closed then
        redis.call('HDEL', key, 'd:' .. other)
      end
    end)
    breaker = {state = 'closed', epoch = 0, open_until = 0, closed_at = 0, cause = ARGV[7],
               trips = 0, answers = 0, tickets = {}}
  elseif breaker.state ~= 'closed' or breaker.epoch ~= tonumber(ARGV[6]) then
    return record(name, breaker)
  end
  breaker.cause = ARGV[7]
  open(name, breaker, tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]))
  return record(name, breaker)
end

if op == 'probe' then
  if not breaker or breaker.state == 'closed' then return {0, record(name, breaker)} end
  if breaker.state == 'open' then
    if now < breaker.open_until then return {0, record(name, breaker)} end
    breaker.answers, breaker.tickets = 0, {}
    change(name, breaker, 'half_open')
  end
  local owner, out = ARGV[6], 0
  for other, deadline in pairs(breaker.tickets) do
    if deadline <= now then breaker.tickets[other] = nil else out = out + 1 end
  end
  local granted = 0
  if breaker.tickets[owner] then
    granted = 1
  elseif out < tonumber(ARGV[8]) then
    granted, breaker.tickets[owner] = 1, now + tonumber(ARGV[7])
  end
  save(name, breaker)
  return {granted, record(name, breaker)}
end

-- conclude
local owner, deadline = ARGV[6], nil
if breaker and breaker.state == 'half_open' and breaker.epoch == tonumber(ARGV[7]) then
  deadline = breaker.tickets[owner]
end
if not deadline then return record(name, breaker) end
breaker.tickets[owner] = nil
if deadline <= now then
  save(name, breaker)
elseif ARGV[8] == 'failed' then
  open(name, breaker, tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]))
else
  if ARGV[8] == 'answered' then breaker.answers = breaker.answers + 1 end
  if breaker.answers >= tonumber(ARGV[9]) then
    breaker.closed_at = now
    change(name, breaker, 'closed')
  else
    save(name, breaker)
  end
end
return record(name, breaker)
