-- Close the minutes that have passed: each becomes a batch under a name of its own, in one step, so that a late
-- count starts a new usage key and, with it, a new batch. A name tells when its usage key began: where a crash or a
-- failover undoes the closing, the same counts get the same name again, and are not added twice.
--
-- KEYS[1]  the version key, whose tag every other key of this script shares
-- ARGV[1]  time in us, or -1 for TIME
-- ARGV[2]  what makes the names of this call's batches unique, and the shard: "TEXT" or "TEXT:SHARD"
-- Returns  the names of all batches that wait to be collected
local call = redis.call
local USAGE_SECONDS = 8 * 86400
local prefix = string.sub(KEYS[1], 1, -8)
local minutes, batches = prefix .. 'minutes', prefix .. 'batches'

local now = tonumber(ARGV[1])
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local current = math.floor(now / 60000000)

-- The text of the first call tells this server's counts from those of others.
local text, shard = string.match(ARGV[2], '^([^:]*)(.*)$')
call('SET', prefix .. 'source', text, 'NX')
local source = call('GET', prefix .. 'source')
call('EXPIRE', prefix .. 'source', USAGE_SECONDS)

for _, minute in ipairs(call('SMEMBERS', minutes)) do
  if tonumber(minute) < current then
    local usage = prefix .. 'usage:' .. minute
    if call('EXISTS', usage) == 1 then
      local began = string.match(call('HGET', usage, '') or '', '^%d+%.%d+')
      local batch = minute .. ':' .. (began and source .. '-' .. began or text) .. shard
      call('RENAME', usage, prefix .. 'batch:' .. batch)
      call('SADD', batches, batch)
      call('EXPIRE', batches, USAGE_SECONDS)
    end
    call('SREM', minutes, minute)
  end
end
return call('SMEMBERS', batches)
