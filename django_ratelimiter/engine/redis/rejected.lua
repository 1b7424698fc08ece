-- A part of check.lua: record the callers that a call rejects, see engine/usage/rejections.py. They are in the hash of
-- the minutes that are not closed, so that each call needs one key less. The hash exists when usage is counted: a
-- missing key would keep a cluster from deciding while it moves the shard. `name`, `weight` and `step` are of the
-- entry. -- The number of an entry is 2^19 times the step of its latest rejection, plus how many there were, so that
-- one command adds to it; below 2^53 until 2106. The field with its name and a line break contains the step of the
-- first. The field of its usage contains the step at which its rejections were last recorded in bulk. The field with a
-- tab and a caller contains the caller's tail.
local STEP, RENEWED, PAUSE, MAX_TIMES, MAX_FIELDS = 524288, 4, 14400, 262144, 2000
local KEPT, DAY, OLDEST_MINUTES = 600, 345600, 9 * 1440 -- until their usage has expired

local list, entry = KEYS[3], call('HINCRBY', KEYS[3], name, weight)
local last = floor(entry / STEP)
if step - last >= PAUSE then -- no such rejection for an hour, or ever
  local added = call('HSET', list, name, step * STEP + weight, name .. '\n', step)
  local size = added == 1 and call('HLEN', list) or 0
  if size > 0 and size < 8 then
    call('HSET', list, '', string.rep(' ', 80)) -- a long value converts the hash from a list to a table
  end
    -- Keep the latest entries, a fair number of each kind. Minutes that are not collected stay as well, so this is only
    -- tested now and then (a new entry may come with other fields).
  if size > MAX_FIELDS and (size <= MAX_FIELDS + 8 or size % 256 < 8) then
    local all, kinds, order, gone, held = call('HGETALL', list), {}, {}, {}, {}
    for i = 1, #all, 2 do
      local kind = match(all[i], '^(.-)\n\t.*[^\n]$')
      if kind then
        if not kinds[kind] then
          kinds[kind] = {}
          order[#order + 1] = kinds[kind]
        end
        table.insert(kinds[kind], floor(tonumber(all[i + 1]) / STEP))
      elseif string.find(all[i], '\n$') or sub(all[i], 1, 1) == '\t' then -- with its entry
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
      if kind and floor(tonumber(all[i + 1]) / STEP) < kinds[kind].oldest then
        gone[#gone + 1] = all[i]
        gone[#gone + 1] = all[i] .. '\n'
      elseif kind then
        for part in string.gmatch(all[i], '[^:\n]+') do held['\t' .. part] = true end
      end
    end
    for i = 1, #all, 2 do
      if sub(all[i], 1, 1) == '\t' and not held[all[i]] then gone[#gone + 1] = all[i] end
    end
    for first = 1, #gone, 1000 do
      call('HDEL', list, spread(gone, first, min(first + 999, #gone)))
    end
  end
elseif step - last >= RENEWED then
  local surplus = max(entry % STEP - MAX_TIMES, 0)
  call('HINCRBY', list, name, (step - last) * STEP - surplus)
end
