-- Give one holder's blocks of several pools back, but those that were asked for again since.
--
-- KEYS     hashes of the pools (see lease_blocks.lua)
-- ARGV     holder, sequence
-- Returns  how many blocks were given back
--
-- common.lua goes before it.

local own, given_back = 'h:' .. ARGV[1], 0
local of_reservations = own .. '|'
for _, key in ipairs(KEYS) do
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local field = fields[i]
    if field == own or string.sub(field, 1, #of_reservations) == of_reservations then
      local ok, block = pcall(cjson.decode, fields[i + 1])
      local later = ok and type(block) == 'table' and whole(block.sequence) or 0
      if later <= tonumber(ARGV[2]) then
        given_back = given_back + redis.call('HDEL', key, field)
      end
    end
  end
end
return given_back
