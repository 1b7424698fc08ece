-- A part of check.lua: add `calls` to the `field` of the hash `usage`, which belongs to `minute`. `counted` is the new
-- number. Not a function, because Lua would create it in each call.
counted = call('HINCRBY', usage, field, calls)
if counted == calls then -- perhaps the first of its minute
  -- The time when the hash began is in its batch's name, see closing.py. One long value converts it from a list, which
  -- is searched, to a hash table.
  call('HSETNX', usage, '', string.format('%d.%d', now, mark) .. string.rep(' ', 512))
  call('HSETNX', KEYS[3], string.format('%d', minute), '')
  call('EXPIRE', usage, USAGE_SECONDS)
  call('EXPIRE', KEYS[3], USAGE_SECONDS)
end
