-- Sliding window of slots. State: last, and the units of the slots, six bytes each, the slot of `last` first. x: the
-- units in the window; y: how many slots have begun since. The same steps as in sliding_window_slots.py.
local FIRST, SLOT, EMPTY = 8, 6, '\0\0\0\0\0\0'
local slots = rate

--@whole
if #raw < 13 or #raw % 6 ~= 1 then raw = nil end

--@look
x, y = 0, 0
if raw then
  local index = floor(at / period) * slots + floor(at % period * slots / period)
  y = min(index - floor(last / period) * slots - floor(last % period * slots / period), slots)
  local oldest = min(#raw - SLOT + 1, FIRST + SLOT * (slots - y - 1))
  for slot = FIRST, oldest, SLOT do x = x + unpack('<I6', raw, slot) end
end
remaining = max(capacity - x, 0)

--@spend
local units = min(cost, x)
local excess = units - (x - before) -- a rejection that counts: the oldest make room, they would expire first
state = sub(string.rep(EMPTY, y) .. (raw and sub(raw, FIRST) or EMPTY), 1, SLOT * slots)
local slot = #state - SLOT + 1
while excess > 0 do
  local held = unpack('<I6', state, slot)
  local left = max(held - excess, 0)
  state = sub(state, 1, slot - 1) .. pack('<I6', left) .. sub(state, slot + SLOT)
  excess, slot = excess - (held - left), slot - SLOT
end
state = pack('<i7I6', at, unpack('<I6', state) + units) .. sub(state, SLOT + 1)

--@wait
local excess, slot = x + cost - capacity, min(#raw - SLOT + 1, FIRST + SLOT * (slots - y - 1)) + SLOT
while excess > 0 do
  slot = slot - SLOT
  excess = excess - unpack('<I6', raw, slot)
end
local index = floor(at / period) * slots + floor(at % period * slots / period)
index = index - y - (slot - FIRST) / SLOT + slots
wait = floor(index / slots) * period + ceil(index % slots * period / slots) - at

--@reset
reset = 0
if x > 0 then
  local index = floor(at / period) * slots + floor(at % period * slots / period) + slots
  if spent == 0 then
    local slot = FIRST
    while unpack('<I6', raw, slot) == 0 do slot = slot + SLOT end
    index = index - y - (slot - FIRST) / SLOT
  end
  reset = floor(index / slots) * period + ceil(index % slots * period / slots) - at
end

--@refund
local last = unpack('<i7', raw)
local age = floor(last / period) * slots + floor(last % period * slots / period)
age = age - floor(spent_at / period) * slots - floor(spent_at % period * slots / period)
local slot = FIRST + SLOT * age
if age >= 0 and slot <= #raw then
  local units = pack('<I6', max(unpack('<I6', raw, slot) - cost, 0))
  state = sub(raw, 1, slot - 1) .. units .. sub(raw, slot + SLOT)
end
