-- Grant, renew or change blocks of several pools, as one command. The same as
-- adapters/memory/block_leases.py; docs/reliability.md, "Admission", has the reasons.
--
-- KEYS     one hash per pool: ~latest, ~learning_until, ~epoch, and a JSON record per holder;
--          all of one hash tag
-- ARGV     learning (us), batch fraction, newcomers fraction, keep (ms), then per pool: holder,
--          sequence, capacity, interactive, batch, has, in_flight, ttl (us), sharing
-- Returns  per pool: epoch, granted, batch, holders, learning (0 or 1)
--
-- Times are microseconds of the server's clock and travel as strings: cjson keeps 14 digits.

local learning_for, batch_fraction = tonumber(ARGV[1]), tonumber(ARGV[2])
local newcomers_fraction, keep_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function text(number) return string.format('%.0f', number) end

local function decode(value)
  local ok, block = pcall(cjson.decode, value)
  if not ok or type(block) ~= 'table' then return nil end
  for _, name in ipairs({'epoch', 'sequence', 'granted', 'batch', 'held', 'wants_interactive',
                         'wants_batch', 'capacity', 'newcomer', 'ends'}) do
    block[name] = tonumber(block[name])
    if block[name] == nil then return nil end
  end
  return block
end

local function save(key, name, block)
  local record = {}
  for field, value in pairs(block) do record[field] = value end
  record.epoch, record.ends = text(block.epoch), text(block.ends)
  redis.call('HSET', key, 'h:' .. name, cjson.encode(record))
end

-- domain/sharing.py: shares, then whole slots
local function total(numbers)
  local sum = 0
  for _, number in ipairs(numbers) do sum = sum + number end
  return sum
end

local function exact_shares(sharing, slots, wants)
  local count, shares = #wants, {}
  if sharing == 'static' then
    for i, want in ipairs(wants) do shares[i] = math.min(want, slots) end
  elseif total(wants) <= slots then
    for i, want in ipairs(wants) do shares[i] = want end
  elseif sharing == 'proportional_share' then
    local equal, spare, need = slots / count, 0, 0
    for _, want in ipairs(wants) do
      if want < equal then spare = spare + (equal - want) end
      if want > equal then need = need + (want - equal) end
    end
    for i, want in ipairs(wants) do
      shares[i] = want <= equal and want or equal + (want - equal) * spare / need
    end
  else
    local sorted = {}
    for i, want in ipairs(wants) do sorted[i] = want end
    table.sort(sorted)
    local left, waiting, level = slots, count, 0
    for _, want in ipairs(sorted) do
      level = left / waiting
      if want > level then break end
      left, waiting = left - want, waiting - 1
    end
    for i, want in ipairs(wants) do shares[i] = math.min(want, level) end
  end
  return shares
end

local function whole_shares(sharing, slots, wants, turn)
  local exact, whole, order = exact_shares(sharing, slots, wants), {}, {}
  for i, share in ipairs(exact) do
    whole[i] = math.floor(share)
    order[i] = i
  end
  local spare = math.min(slots, total(wants)) - total(whole)
  table.sort(order, function(a, b)
    local left, right = whole[a] - exact[a], whole[b] - exact[b]
    if left ~= right then return left < right end
    return (a - 1 - turn) % #wants < (b - 1 - turn) % #wants
  end)
  local given = {}
  for i, share in ipairs(whole) do given[i] = share end
  for _, i in ipairs(order) do
    if spare <= 0 then break end
    if given[i] < wants[i] then
      given[i] = given[i] + 1
      spare = spare - 1
    end
  end
  return given
end

local function lease(key, holder, sequence, capacity, wants_interactive, wants_batch, has, in_flight,
                     ttl, sharing)
  local stated = capacity
  local fields = redis.call('HGETALL', key)
  local state, blocks = {}, {}
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if string.sub(name, 1, 2) == 'h:' then
      local block = decode(value)
      if block then
        blocks[string.sub(name, 3)] = block
      else
        redis.call('HDEL', key, name)  -- not ours: as if it were not there
      end
    else
      state[name] = tonumber(value)
    end
  end
  local learning_until = state['~learning_until'] or (now + learning_for)
  -- steps of the clock backwards move all ends back with it
  local step_back = (state['~latest'] or now) - now
  if step_back > 0 then
    learning_until = learning_until - step_back
    for name, block in pairs(blocks) do
      block.ends = block.ends - step_back
      save(key, name, block)
    end
  end
  for name, block in pairs(blocks) do
    if block.ends <= now then
      redis.call('HDEL', key, 'h:' .. name)
      blocks[name] = nil
    end
  end
  redis.call('HSET', key, '~latest', text(now), '~learning_until', text(learning_until))

  local mine = blocks[holder]
  local learning = now < learning_until
  local holders = mine and 0 or 1
  for _ in pairs(blocks) do holders = holders + 1 end
  if mine and sequence <= mine.sequence then
    return {text(mine.epoch), mine.granted, mine.batch, holders, learning and 1 or 0}
  end

  local others_held, newcomers_granted, longest = 0, 0, ttl
  for name, block in pairs(blocks) do
    if name ~= holder then
      others_held = others_held + block.held
      if block.held + block.wants_interactive + block.wants_batch > 0 then
        capacity = math.min(capacity, block.capacity)
      end
      if block.newcomer == 1 then newcomers_granted = newcomers_granted + block.granted end
      longest = math.max(longest, block.ends - now)
    end
  end
  local free = math.max(0, capacity - others_held)
  local epoch = mine and mine.epoch or redis.call('HINCRBY', key, '~epoch', 1)
  local newcomer
  if mine then newcomer = mine.newcomer else newcomer = (has == 0 and in_flight == 0) and 1 or 0 end

  local all, batch
  if learning then
    if newcomer == 1 then
      local allowance = math.max(1, math.floor(capacity / newcomers_fraction)) - newcomers_granted
      all = math.max(0, math.min(wants_interactive + wants_batch, allowance))
      batch = math.max(0, all - wants_interactive)
    else
      all = math.max(has, in_flight)
      batch = math.min(wants_batch, all)
    end
  else
    local names, interactive_wants, batch_wants, place = {}, {}, {}, 0
    for name in pairs(blocks) do
      if name ~= holder then names[#names + 1] = name end
    end
    names[#names + 1] = holder
    table.sort(names)
    for i, name in ipairs(names) do
      local block = blocks[name]
      if name == holder then
        place, interactive_wants[i], batch_wants[i] = i, wants_interactive, wants_batch
      else
        interactive_wants[i], batch_wants[i] = block.wants_interactive, block.wants_batch
      end
    end
    local turn = math.floor(now / ttl)
    local interactive = whole_shares(sharing, capacity, interactive_wants, turn)
    local left = math.max(0, capacity - total(interactive))
    left = math.min(left, math.max(1, math.floor(capacity * batch_fraction)))
    batch = whole_shares(sharing, left, batch_wants, turn)[place]
    all = interactive[place] + batch
  end

  local granted = math.min(all, free)
  batch = math.max(0, math.min(batch, granted - (all - batch)))
  save(key, holder, {
    epoch = epoch, sequence = sequence, granted = granted, batch = batch,
    held = math.max(granted, has, in_flight), wants_interactive = wants_interactive,
    wants_batch = wants_batch, capacity = stated, newcomer = newcomer, ends = now + ttl,
  })
  -- never below the longest lease; far above it, so that a pool that was idle is not taken for new
  redis.call('PEXPIRE', key, text(keep_ms + longest / 1000))
  return {text(epoch), granted, batch, holders, learning and 1 or 0}
end

local grants = {}
for i, key in ipairs(KEYS) do
  local a = 4 + 9 * (i - 1)
  local function number(n) return tonumber(ARGV[a + n]) end
  grants[i] = lease(key, ARGV[a + 1], number(2), number(3), number(4), number(5), number(6),
                    number(7), number(8), ARGV[a + 9])
end
return grants
