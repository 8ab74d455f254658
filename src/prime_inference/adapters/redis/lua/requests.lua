-- Request leases under several limits of one scope, all or none. The same as
-- adapters/memory/request_leases.py.
--
-- KEYS     per limit: a sorted set (member -> end), and a string (the latest time seen)
-- ARGV     acquire | renew | release, member, ttl (us), keep (ms), then the most of each limit
-- Returns  acquire: 1 and nothing, or 0, the place of the limit that refused, and the time until
--          its first lease ends (us); renew, release: 1 if the lease was live under all limits
--
-- common.lua goes before it.

local op, member, ttl, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local limits = #KEYS / 2

for i = 1, limits do
  local leases, clock = KEYS[2 * i - 1], KEYS[2 * i]
  local latest = whole(redis.call('GET', clock)) or now
  if latest > now then  -- a step backwards moves all ends back with it
    local members = redis.call('ZRANGE', leases, 0, -1, 'WITHSCORES')
    for j = 1, #members, 2 do
      redis.call('ZADD', leases, text(tonumber(members[j + 1]) - (latest - now)), members[j])
    end
  end
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', text(now))
end

local function written(leases, clock)
  -- never below the longest lease, whichever was written last
  local longest = redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2]
  local ms = text((longest and (tonumber(longest) - now) / 1000 or 0) + keep_ms)
  redis.call('SET', clock, text(now), 'PX', ms)
  redis.call('PEXPIRE', leases, ms)
end

if op == 'acquire' then
  for i = 1, limits do
    local leases = KEYS[2 * i - 1]
    local most = tonumber(ARGV[4 + i])
    if redis.call('ZCARD', leases) >= most and not redis.call('ZSCORE', leases, member) then
      local first = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]
      return {0, i, text(first and tonumber(first) - now or 0)}
    end
  end
  for i = 1, limits do
    redis.call('ZADD', KEYS[2 * i - 1], text(now + ttl), member)
    written(KEYS[2 * i - 1], KEYS[2 * i])
  end
  return {1}
end

local live = 1
for i = 1, limits do
  if not redis.call('ZSCORE', KEYS[2 * i - 1], member) then live = 0 end
end
for i = 1, limits do
  if op == 'release' then
    redis.call('ZREM', KEYS[2 * i - 1], member)
  elseif live == 1 then
    redis.call('ZADD', KEYS[2 * i - 1], 'XX', text(now + ttl), member)
  end
  written(KEYS[2 * i - 1], KEYS[2 * i])
end
return live
