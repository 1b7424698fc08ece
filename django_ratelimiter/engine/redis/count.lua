-- A part of check.lua: add `calls` to the `field` of the hash `usage`, which belongs to `minute`. `counted` is what it holds
-- then. No function: Lua would make it in each call.
counted = call('HINCRBY', usage, field, calls)
if counted == calls then -- perhaps the first of its minute
  -- When the hash began names its batch, see closing.py. One long value turns it from a list that is searched into a
  -- table.
  call('HSETNX', usage, '', string.format('%d.%d', now, mark) .. string.rep(' ', 512))
  call('HSETNX', KEYS[3], string.format('%d', minute), '')
  call('EXPIRE', usage, USAGE_SECONDS)
  call('EXPIRE', KEYS[3], USAGE_SECONDS)
end
