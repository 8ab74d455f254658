-- Give one holder's block of one pool back, unless it was asked for again since.
--
-- KEYS[1]  hash of the pool (see lease_blocks.lua)
-- ARGV     holder, sequence
-- Returns  1 if a block was given back

local field = 'h:' .. ARGV[1]
local value = redis.call('HGET', KEYS[1], field)
if not value then return 0 end
local ok, block = pcall(cjson.decode, value)
local later = ok and type(block) == 'table' and tonumber(block.sequence) or 0
if later > tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], field)
