-- What every script here begins with: the server's clock, and numbers as they are stored.
--
-- Times are microseconds of the server's clock and travel as strings: cjson keeps 14 digits.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function text(number) return string.format('%.0f', number) end

-- nil for what none of these scripts wrote; NaN fails every comparison
local function whole(value)
  local number = tonumber(value)
  local ours = number and number >= 0 and number <= 2 ^ 53 and number == math.floor(number)
  return ours and number or nil
end

