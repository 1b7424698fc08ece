-- Sliding window of slots. State: last, and the units of the slots, six bytes each, the slot of `last` first. See
-- sliding_window_slots.py, the twin of this file.
local sub, rep = string.sub, string.rep
local FIRST, SLOT, EMPTY = 8, 6, '\0\0\0\0\0\0'

local function index_of(at, period, slots)
  return floor(at / period) * slots + floor(at % period * slots / period)
end

local function start_of(index, period, slots)
  return floor(index / slots) * period + ceil(index % slots * period / slots)
end

-- Where the last slot begins that is still in the window.
local function oldest(raw, gone, slots)
  return min(#raw - SLOT + 1, FIRST + SLOT * (slots - gone - 1))
end

local function look(raw, last, at, period, slots, capacity)
  local gone, total = 0, 0
  if raw then
    gone = min(index_of(at, period, slots) - index_of(last, period, slots), slots)
    for slot = FIRST, oldest(raw, gone, slots), SLOT do total = total + unpack('<I6', raw, slot) end
  end
  return max(capacity - total, 0), total, gone
end

local function spend(total, cost, period, slots, capacity)
  return max(total, min(total + cost, capacity))
end

local function wait(total, gone, at, cost, period, slots, capacity, tick_us, extra, raw)
  local excess, slot = total + cost - capacity, oldest(raw, gone, slots) + SLOT
  while excess > 0 do
    slot = slot - SLOT
    excess = excess - unpack('<I6', raw, slot)
  end
  local age = (slot - FIRST) / SLOT
  return start_of(index_of(at, period, slots) - gone - age + slots, period, slots) - at
end

local function reset(total, gone, at, period, slots, capacity, tick_us, extra, raw, spent)
  if total == 0 then return 0 end
  local age = 0
  if spent == 0 then
    local slot = FIRST
    while unpack('<I6', raw, slot) == 0 do slot = slot + SLOT end
    age = gone + (slot - FIRST) / SLOT
  end
  return start_of(index_of(at, period, slots) - age + slots, period, slots) - at
end

local function store(total, gone, at, period, slots, capacity, tick_us, extra, raw, cost, added)
  local kept = sub(rep(EMPTY, gone) .. (raw and sub(raw, FIRST) or EMPTY), 1, SLOT * slots)
  local units = min(cost, total)
  local excess = units - added -- a refusal that counts: the oldest make room, for they would leave first
  local slot = #kept - SLOT + 1
  while excess > 0 do
    local held = unpack('<I6', kept, slot)
    local left = max(held - excess, 0)
    kept = sub(kept, 1, slot - 1) .. pack('<I6', left) .. sub(kept, slot + SLOT)
    excess, slot = excess - (held - left), slot - SLOT
  end
  return pack('<i7I6', at, unpack('<I6', kept) + units) .. sub(kept, SLOT + 1)
end

local function refund(raw, cost, spent_at, period, slots)
  local age = index_of(unpack('<i7', raw), period, slots) - index_of(spent_at, period, slots)
  local slot = FIRST + SLOT * age
  if age < 0 or slot > #raw then return nil end
  return sub(raw, 1, slot - 1) .. pack('<I6', max(unpack('<I6', raw, slot) - cost, 0)) .. sub(raw, slot + SLOT)
end

-- The full quota is back at the end of a window: what is spent in one seldom changes that.
local HOLDS, ENDS = false, true

return { look, spend, wait, reset, store, refund, HOLDS, ENDS }
