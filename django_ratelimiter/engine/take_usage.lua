-- Close the minutes that have passed: each becomes a batch under a name of its own, in one step, so that a late
-- count starts a new usage key and, with it, a new batch.
--
-- KEYS[1]  the version key, whose tag every other key of this script shares
-- ARGV[1]  time in us, or -1 for TIME
-- ARGV[2]  what makes the names of this call's batches unique
-- Returns  the names of all batches that wait to be collected
local call, format = redis.call, string.format
local USAGE_SECONDS = 8 * 86400
local prefix = string.sub(KEYS[1], 1, -8)
local minutes, batches = prefix .. 'minutes', prefix .. 'batches'

local now = tonumber(ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local current = math.floor(now / 60000000)

for _, minute in ipairs(call('SMEMBERS', minutes)) do
  if tonumber(minute) < current then
    local usage = prefix .. 'usage:' .. minute
    if call('EXISTS', usage) == 1 then
      local batch = minute .. ':' .. ARGV[2]
      call('RENAME', usage, prefix .. 'batch:' .. batch)
      call('SADD', batches, batch)
      call('EXPIRE', batches, USAGE_SECONDS)
    end
    call('SREM', minutes, minute)
  end
end
return call('SMEMBERS', batches)
