-- A part of check.lua: add `calls` to the `field` of the hash `usage`, which belongs to `minute`. `counted` is the new
-- number. Not a function, because Lua would create it in each call.
counted = call('HINCRBY', usage, field, calls)
if counted == calls then -- perhaps the first of its minute
  -- Callers are counted apart up to a number, which begins anew when a batch was collected: see engine/usage/__init__.py.
  if string.find(field, '\v', 1, true) and call('HINCRBY', KEYS[3], 'callers\n', 1) > MAX_CALLERS then
    call('HDEL', usage, field)
    field = string.gsub(field, '\v[^\t\n]*', '\v')
    counted = call('HINCRBY', usage, field, calls)
  end
  -- The time when the hash began is in its batch's name, see closing.py. One long value converts it from a list, which
  -- is searched, to a hash table.
  local began = call('HSETNX', usage, '', string.format('%d.%d', now, mark) .. string.rep(' ', 512))
  if call('HSETNX', KEYS[3], string.format('%d', minute), '') + began > 0 then
    call('EXPIRE', usage, USAGE_SECONDS)
    call('EXPIRE', KEYS[3], USAGE_SECONDS)
  end
end
