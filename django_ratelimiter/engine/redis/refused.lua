-- A part of check.lua: record whom a call has refused, see engine/usage/refusals.py, in the hash of the minutes that are not
-- closed, so that each call names one key less. It is there when usage is counted: a key that is not would keep a
-- cluster from deciding while it moves the shard. `name`, `weight` and `step` are of the entry.
--
-- Its number is 2^20 times the step of the latest refusal, and how many there were: so that one command adds to it.
-- Behind the name and a line's end stands the step of the first. In the field of its usage stands when its refusals
-- were last recorded for many.
local RENEWED, PAUSE, MOST_TIMES, MAX_FIELDS = 4, 14400, 524288, 2000
local KEPT, DAY, OLDEST_MINUTES = 600, 345600, 9 * 1440 -- their usage has expired

local list, entry = KEYS[3], call('HINCRBY', KEYS[3], name, weight)
local last = floor(entry / 1048576)
if step - last >= PAUSE then -- nothing was refused like this for an hour, or ever
  local added = call('HSET', list, name, step * 1048576 + weight, name .. '\n', step)
  local size = added == 1 and call('HLEN', list) or 0
  if size > 0 and size < 8 then
    call('HSET', list, '', string.rep(' ', 80)) -- a long value turns the hash from a list that is searched into a table
  end
  -- Keep the latest, of each kind as many as of others. Minutes that nobody collects stay as well: then this is looked
  -- at now and then (a new entry may come with other fields).
  if size > MAX_FIELDS and (size <= MAX_FIELDS + 8 or size % 256 < 8) then
    local all, kinds, order, gone = call('HGETALL', list), {}, {}, {}
    for i = 1, #all, 2 do
      local kind = match(all[i], '^(.-)\n\t.*[^\n]$')
      if kind then
        if not kinds[kind] then
          kinds[kind] = {}
          order[#order + 1] = kinds[kind]
        end
        table.insert(kinds[kind], floor(tonumber(all[i + 1]) / 1048576))
      elseif string.find(all[i], '\n$') then -- goes with its entry
      elseif string.find(all[i], '\n') then
        if step - tonumber(all[i + 1]) > DAY then gone[#gone + 1] = all[i] end
      elseif now / 60000000 - (tonumber(all[i]) or 0) > OLDEST_MINUTES then
        gone[#gone + 1] = all[i]
      end
    end
    for _, steps in ipairs(order) do table.sort(steps) end
    table.sort(order, function(a, b)
      if #a == #b then return a[#a] < b[#b] end
      return #a < #b
    end)
    local left = KEPT
    for place, steps in ipairs(order) do
      local share = min(#steps, floor(left / (#order - place + 1)))
      left = left - share
      steps.oldest = steps[#steps + 1 - share] or step + 1
    end
    for i = 1, #all, 2 do
      local kind = match(all[i], '^(.-)\n\t.*[^\n]$')
      if kind and floor(tonumber(all[i + 1]) / 1048576) < kinds[kind].oldest then
        gone[#gone + 1] = all[i]
        gone[#gone + 1] = all[i] .. '\n'
      end
    end
    for first = 1, #gone, 1000 do
      call('HDEL', list, (table.unpack or _G.unpack)(gone, first, min(first + 999, #gone)))
    end
  end
elseif step - last >= RENEWED then
  local surplus = max(entry % 1048576 - MOST_TIMES, 0)
  call('HINCRBY', list, name, (step - last) * 1048576 - surplus)
end
