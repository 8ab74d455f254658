-- Give one holder's blocks of several pools back, but those that were asked for again since.
--
-- KEYS     hashes of the pools (see lease_blocks.lua)
-- ARGV     holder, sequence
-- Returns  how many blocks were given back

local field, given_back = 'h:' .. ARGV[1], 0
for _, key in ipairs(KEYS) do
  local value = redis.call('HGET', key, field)
  if value then
    local ok, block = pcall(cjson.decode, value)
    local later = ok and type(block) == 'table' and tonumber(block.sequence) or 0
    if later <= tonumber(ARGV[2]) then given_back = given_back + redis.call('HDEL', key, field) end
  end
end
return given_back
