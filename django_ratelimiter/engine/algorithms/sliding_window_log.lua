-- Sliding window log. State: last, total, and entries of a time and a cost, nine bytes each, the oldest first.
-- x: the total of those in the window; y: where they begin. The same steps as in sliding_window_log.py. Only entries
-- that have left or must leave the window are read: the total includes the others.
local FIRST, ENTRY = 10, 9

--@whole
if #raw < 9 or #raw % 9 > 0 then raw = nil end

--@look
x, y = 0, FIRST
if raw then
  x = unpack('<I2', raw, 8)
  while y < #raw do
    local time, units = unpack('<i7I2', raw, y)
    if time > at - period then break end
    x, y = x - units, y + ENTRY
  end
end
remaining = max(capacity - x, 0)

--@spend
local oldest = ''
local units = min(cost, x)
local excess = units - (x - before) -- a rejection that counts: the oldest make room, they would expire first
local live = y
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
state = pack('<i7I2', at, x) .. entries .. pack('<i7I2', at, units)

--@wait
local excess, entry = x + cost - capacity, y
while excess > 0 do
  local time, units = unpack('<i7I2', raw, entry)
  excess, entry = excess - units, entry + ENTRY
  wait = time + period - at
end

--@reset
reset = spent > 0 and period or x > 0 and unpack('<i7', raw, #raw - 8) + period - at or 0

--@refund
local low, high = 0, (#raw - ENTRY) / ENTRY
while low < high do -- the first entry that is not older
  local middle = floor((low + high) / 2)
  if unpack('<i7', raw, FIRST + ENTRY * middle) < spent_at then low = middle + 1 else high = middle end
end
local entry = FIRST + ENTRY * low
local time, units
if entry <= #raw then time, units = unpack('<i7I2', raw, entry) end
if time == spent_at then
  local last, total = unpack('<i7I2', raw)
  local back = min(cost, units)
  local left = units > back and pack('<i7I2', time, units - back) or ''
  state = pack('<i7I2', last, total - back) .. sub(raw, FIRST, entry - 1) .. left .. sub(raw, entry + ENTRY)
end
