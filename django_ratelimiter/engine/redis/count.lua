-- A part of check.lua: add `calls` to the `field` of the hash `usage`, which belongs to `minute`. `counted` is the new
-- number. Not a function, because Lua would create it in each call.
counted = call('HINCRBY', usage, field, calls)
if counted == calls then -- perhaps the first of its minute
  -- Callers are counted apart up to a number, which begins anew when a batch was collected: see engine/usage/__init__.py.
  -- Only each 64th adds to it, and does what the first of a minute does: reading costs less.
  local fields = string.find(field, '\v', 1, true) and call('HLEN', usage) or 1
  if fields % 64 == 0 then call('HINCRBY', KEYS[3], 'callers\n', 64) end
  if fields > 1 and tonumber(call('HGET', KEYS[3], 'callers\n') or 0) > MAX_CALLERS then
    call('HDEL', usage, field)
    field = string.gsub(field, '\v[^\t\n]*', '\v')
    counted = call('HINCRBY', usage, field, calls)
  end
  if fields % 64 < 2 then
    -- The time when the hash began is in its batch's name, see closing.py. One long value converts it from a list, which
    -- is searched, to a hash table.
    call('HSETNX', usage, '', string.format('%d.%d', now, mark) .. string.rep(' ', 512))
    call('HSETNX', KEYS[3], string.format('%d', minute), '')
    call('EXPIRE', usage, USAGE_SECONDS)
    call('EXPIRE', KEYS[3], USAGE_SECONDS)
  end
end
