-- Close one past minute: its counts become a batch with its own name, in one step, so that a late
-- count starts a new usage key and, with it, a new batch. See redis/closing.py, which calls it once for each minute.
--
-- KEYS     "usage:MINUTE", "batch:NAME", "recent" and "batches", with one hash tag
-- ARGV     MINUTE, NAME, and an id that distinguishes this usage key from earlier or later ones of the same minute
-- Returns  1, or 0 if it is another usage key by now, and nothing was done
local call = redis.call
local USAGE_SECONDS = 8 * 86400

local began = string.match(call('HGET', KEYS[1], '') or '', '^%d+%.%d+') or ''
if began ~= ARGV[3] then return 0 end
if call('EXISTS', KEYS[1]) == 1 then
  call('RENAME', KEYS[1], KEYS[2])
  call('SADD', KEYS[4], ARGV[2])
  call('EXPIRE', KEYS[4], USAGE_SECONDS)
end
call('HDEL', KEYS[3], ARGV[1])
return 1
