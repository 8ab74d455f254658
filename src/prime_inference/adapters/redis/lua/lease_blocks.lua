-- Grant, renew or change blocks of several pools, as one command. The same as
-- adapters/memory/block_leases.py and reserved_blocks.py; docs/reliability.md, "Admission", and
-- docs/reservations.md have the reasons.
--
-- KEYS     one hash per pool: ~latest, ~learning_until, ~epoch, and a JSON record per block, which
--          is named by its holder, or holder|reservation; all of one hash tag
-- ARGV     learning (us), batch fraction, newcomers fraction, keep (ms), safe floor, prompt (us),
--          return (us), then per pool: holder, sequence, capacity, interactive, batch, has,
--          in_flight, ttl (us), sharing, reservation, reserved, kept, safe, keep, has_batch
-- Returns  per pool: epoch, granted, batch, holders, learning (0 or 1), recall, owed, safe,
--          capacity, until there may be more (us)
--
-- common.lua goes before it.

local learning_for, batch_fraction = tonumber(ARGV[1]), tonumber(ARGV[2])
local newcomers_fraction, keep_ms = tonumber(ARGV[3]), tonumber(ARGV[4])
local safe_floor, prompt, return_for = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local LONGEST_TTLS = 60  -- lease times of others are no more of ours than that

local function decode(value)
  local ok, found = pcall(cjson.decode, value)
  if not ok or type(found) ~= 'table' then return nil end
  local block = {}
  for _, name in ipairs({'epoch', 'sequence', 'granted', 'batch', 'held', 'wants_interactive',
                         'wants_batch', 'capacity', 'newcomer', 'ends'}) do
    block[name] = whole(found[name])
    if block[name] == nil then return nil end
  end
  if block.capacity == 0 then return nil end
  for _, name in ipairs({'reserved', 'kept', 'in_flight', 'recall', 'owed', 'safe', 'told_capacity',
                         'awaited', 'has_batch'}) do
    block[name] = whole(found[name]) or 0
  end
  for _, name in ipairs({'reservation', 'holder'}) do
    block[name] = type(found[name]) == 'string' and found[name] or ''
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

-- what reservations want and have of a pool, by reservation
local function reservations(blocks)
  local found = {}
  for _, block in pairs(blocks) do
    if block.reservation ~= '' then
      local sums = found[block.reservation]
      if not sums then
        sums = {slots = block.reserved, wanted = 0, need = 0, held = 0}
        found[block.reservation] = sums
      end
      sums.slots = math.min(sums.slots, block.reserved)
      sums.wanted = sums.wanted + math.max(block.kept, block.wants_interactive + block.wants_batch)
      sums.need = sums.need + block.wants_interactive
      sums.held = sums.held + block.held
    end
  end
  return found
end

local function kept_back(reserved)
  local sum = 0
  for _, sums in pairs(reserved) do sum = sum + math.min(sums.slots, sums.wanted) end
  return sum
end

-- how many requests in flight are in the way of who reserved their slots; `parts` is what each
-- block of `alike` may have
local function recall(reserved, alike, parts, place, capacity)
  local owed, reserved_held, stays, excess = 0, 0, 0, {}
  for _, sums in pairs(reserved) do
    owed = owed + math.max(0, math.min(sums.slots, sums.need) - sums.held)
    reserved_held = reserved_held + sums.held
  end
  for i, block in ipairs(alike) do
    stays = stays + math.max(block.in_flight, math.min(block.held, parts[i]))
    excess[i] = math.max(0, block.in_flight - parts[i])
  end
  local lacking = math.min(owed, owed + reserved_held + stays - capacity)
  if lacking <= 0 then return 0 end
  return whole_shares('fair_share', lacking, excess, 0)[place]
end

-- slots that batch may have at most
local function batch_part(room) return math.max(1, math.floor(room * batch_fraction)) end

-- the whole shares of everybody: first what is wanted first
local function shares(ask, alike, room)
  local first, second, turn = {}, {}, math.floor(now / ask.ttl)
  for i, block in ipairs(alike) do
    first[i], second[i] = block.wants_interactive, block.wants_batch
    -- with what its holder keeps whatever it wants
    if ask.reservation == '' then first[i] = math.max(first[i], block.safe) end
  end
  local sharing = ask.reservation == '' and ask.sharing or 'fair_share'
  first = whole_shares(sharing, room, first, turn)
  local left = math.max(0, room - total(first))
  if ask.reservation == '' then
    left = math.min(left, batch_part(room))
  end
  second = whole_shares(sharing, left, second, turn)
  local parts = {}
  for i = 1, #alike do parts[i] = first[i] + second[i] end
  return parts, second
end

-- slots that the holder keeps whatever it needs: few, where others lack some
local function safe(ask, holders, capacity, lacking, learning, newcomer)
  if learning then
    return newcomer and math.min(ask.keep, 1) or ask.safe
  end
  if ask.reservation ~= '' then return lacking and 0 or ask.keep end
  local part = math.floor(capacity / holders)
  if lacking and part > 0 then part = math.max(1, math.floor(part / safe_floor)) end
  return math.min(ask.keep, part)
end

local function lease(key, ask)
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
      -- a lost epoch is made of the time: higher than any that was given
      state[name] = whole(value) or (name == '~epoch' and now or nil)
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
  learning_until = math.min(learning_until, now + learning_for)
  local latest = math.min(state['~latest'] or now, now)
  for name, block in pairs(blocks) do
    if block.ends > now + ask.ttl * LONGEST_TTLS then
      redis.call('HDEL', key, 'h:' .. name)  -- not ours either: it would hold slots for good
      blocks[name] = nil
    elseif block.ends <= now then
      -- nobody was heard shortly before its end, nor since: its holder may be about to ask
      if block.awaited == 0 and latest < block.ends - prompt then
        block.awaited, block.ends = 1, now + return_for
        save(key, name, block)
      else
        redis.call('HDEL', key, 'h:' .. name)
        blocks[name] = nil
      end
    end
  end
  redis.call('HSET', key, '~latest', text(now), '~learning_until', text(learning_until))

  local name = ask.holder
  if ask.reservation ~= '' then name = name .. '|' .. ask.reservation end
  local mine, learning = blocks[name], now < learning_until
  local alike, alike_held, alike_in_flight, alike_batch = {}, 0, 0, 0
  local capacity, slots = ask.capacity, ask.reserved
  local others_held, newcomers_granted, longest = 0, 0, ask.ttl
  local largest, largest_name, lacking = nil, nil, false
  for other, block in pairs(blocks) do
    if other ~= name then
      others_held = others_held + block.held
      capacity = math.min(capacity, block.capacity)
      if not largest or block.held > largest.held
          or (block.held == largest.held and other > largest_name) then
        largest, largest_name = block, other
      end
      longest = math.max(longest, block.ends - now)
      if block.reservation == ask.reservation then
        alike[#alike + 1] = block
        alike_held = alike_held + block.held
        alike_in_flight = alike_in_flight + block.in_flight
        alike_batch = alike_batch + math.max(block.batch, block.has_batch)
        slots = math.min(slots, block.reserved)
        lacking = lacking or block.granted < block.wants_interactive + block.wants_batch
        if block.newcomer == 1 then newcomers_granted = newcomers_granted + block.granted end
      end
    end
  end
  local holders = #alike + 1
  if mine and ask.sequence <= mine.sequence then
    return {text(mine.epoch), mine.granted, mine.batch, holders, learning and 1 or 0,
            mine.recall, mine.owed, mine.safe, mine.told_capacity, '0'}
  end
  if ask.reservation == '' then slots = capacity end
  local room, reserved = slots, nil
  if ask.reservation == '' and not learning then
    reserved = reservations(blocks)
    room = math.max(0, capacity - kept_back(reserved))
  end
  local free = math.max(0, math.min(capacity - others_held, room - alike_held))
  local epoch = mine and mine.epoch
  if not epoch then
    epoch = (state['~epoch'] or 0) + 1
    redis.call('HSET', key, '~epoch', text(epoch))
  end
  local newcomer
  if mine then
    newcomer = mine.newcomer
  else
    newcomer = (ask.has == 0 and ask.in_flight == 0 and ask.safe == 0) and 1 or 0
  end
  local block = {
    holder = ask.holder, reservation = ask.reservation, reserved = ask.reserved, kept = ask.kept,
    epoch = epoch, sequence = ask.sequence, wants_interactive = ask.interactive,
    wants_batch = ask.batch, in_flight = ask.in_flight, capacity = ask.capacity,
    newcomer = newcomer, ends = now + ask.ttl, recall = 0, owed = 0, safe = 0,
    told_capacity = capacity, awaited = 0, has_batch = ask.has_batch,
  }
  alike[#alike + 1] = block
  table.sort(alike, function(a, b) return a.holder < b.holder end)

  local all, batch, parts, place
  if learning then
    if newcomer == 1 then
      local allowance = math.max(1, math.floor(slots / newcomers_fraction)) - newcomers_granted
      all = math.max(0, math.min(ask.interactive + ask.batch, allowance))
      batch = math.max(0, all - ask.interactive)
    else
      all = math.max(ask.has, ask.in_flight, math.min(ask.safe, ask.interactive + ask.batch))
      batch = math.min(ask.batch, all)
    end
  else
    local second
    parts, second = shares(ask, alike, room)
    for i, each in ipairs(alike) do
      if each == block then place = i end
    end
    all, batch = parts[place], second[place]
    if ask.reservation == '' then  -- what others run counts, though it is not theirs any more
      local less = math.min(batch, math.max(0, batch + alike_batch - batch_part(room)))
      all, batch = all - less, batch - less
    end
  end

  block.granted = math.min(all, free)
  block.safe = math.min(free, safe(ask, holders, capacity, lacking, learning, newcomer == 1))
  block.held = math.max(block.granted, block.safe, ask.has, ask.in_flight, ask.safe)
  if parts and ask.reservation ~= '' then
    block.owed = math.max(0, math.min(all - batch, slots - alike_in_flight) - block.granted)
  end
  if reserved then block.recall = recall(reserved, alike, parts, place, capacity) end
  block.batch = math.max(0, math.min(batch, block.granted - (all - batch)))
  save(key, name, block)
  -- never below the longest lease; far above it, so that a pool that was idle is not taken for new
  redis.call('PEXPIRE', key, text(keep_ms + longest / 1000))
  local more_in = 0
  if block.granted < ask.interactive + ask.batch then
    if learning then
      more_in = learning_until - now
    elseif largest then
      more_in = math.min(ask.ttl, largest.ends - now)
    end
  end
  return {text(epoch), block.granted, block.batch, holders, learning and 1 or 0, block.recall,
          block.owed, block.safe, capacity, text(more_in)}
end

local grants, size = {}, 15
for i, key in ipairs(KEYS) do
  local a = 7 + size * (i - 1)
  local function number(n) return tonumber(ARGV[a + n]) end
  grants[i] = lease(key, {
    holder = ARGV[a + 1], sequence = number(2), capacity = number(3), interactive = number(4),
    batch = number(5), has = number(6), in_flight = number(7), ttl = number(8),
    sharing = ARGV[a + 9], reservation = ARGV[a + 10], reserved = number(11), kept = number(12),
    safe = number(13), keep = number(14), has_batch = number(15),
  })
end
return grants
