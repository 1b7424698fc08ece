-- Sliding window log. State: last, total, and entries of a time and a cost, nine bytes each and the oldest first.
-- See sliding_window_log.py, the twin of this file. Nothing here looks at more entries than have left the window, or
-- must leave it: the total says what the others hold.
local sub = string.sub
local FIRST, ENTRY = 10, 9

local function look(raw, last, at, period, rate, capacity)
  local total, live = 0, FIRST
  if raw then
    total = unpack('<I2', raw, 8)
    while live < #raw do
      local time, cost = unpack('<i7I2', raw, live)
      if time > at - period then break end
      total, live = total - cost, live + ENTRY
    end
  end
  return max(capacity - total, 0), total, live
end

local function spend(total, cost, period, rate, capacity)
  return max(total, min(total + cost, capacity))
end

local function wait(total, live, at, cost, period, rate, capacity, tick_us, extra, raw)
  local excess, entry = total + cost - capacity, live
  while true do
    local time, units = unpack('<i7I2', raw, entry)
    excess = excess - units
    if excess <= 0 then return time + period - at end
    entry = entry + ENTRY
  end
end

local function reset(total, live, at, period, rate, capacity, tick_us, extra, raw, spent)
  if spent > 0 then return period end
  if total == 0 then return 0 end
  return unpack('<i7', raw, #raw - 8) + period - at
end

local function store(total, live, at, period, rate, capacity, tick_us, extra, raw, cost, added)
  local units, oldest = min(cost, total), ''
  local excess = units - added -- a refusal that counts: the oldest make room, for they would leave first
  while excess > 0 do
    local time, held = unpack('<i7I2', raw, live)
    if held > excess then oldest = pack('<i7I2', time, held - excess) end
    excess, live = excess - held, live + ENTRY
  end
  local entries = oldest .. (raw and sub(raw, live) or '')
  if entries ~= '' and unpack('<i7', entries, #entries - 8) == at then
    units = units + unpack('<I2', entries, #entries - 1)
    entries = sub(entries, 1, -10)
  end
  return pack('<i7I2', at, total) .. entries .. pack('<i7I2', at, units)
end

local function refund(raw, cost, spent_at)
  local low, high = 0, (#raw - ENTRY) / ENTRY
  while low < high do -- the first entry that is not older
    local middle = floor((low + high) / 2)
    if unpack('<i7', raw, FIRST + ENTRY * middle) < spent_at then low = middle + 1 else high = middle end
  end
  local entry = FIRST + ENTRY * low
  if entry > #raw then return nil end
  local time, units = unpack('<i7I2', raw, entry)
  if time ~= spent_at then return nil end
  local last, total = unpack('<i7I2', raw)
  local back = min(cost, units)
  local left = units > back and pack('<i7I2', time, units - back) or ''
  return pack('<i7I2', last, total - back) .. sub(raw, FIRST, entry - 1) .. left .. sub(raw, entry + ENTRY)
end

return { look, spend, wait, reset, store, refund }
