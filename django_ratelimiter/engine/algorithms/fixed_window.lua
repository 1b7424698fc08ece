-- Fixed window. State: last, used, and on the first request how long ago the window began. See fixed_window.py,
-- the twin of this file.
local FIRST_REQUEST, CALENDAR = 1, 2

local function look(raw, last, at, period, anchored, capacity, tick_us, extra)
  local start, used
  if anchored == FIRST_REQUEST then
    start, used = at, 0
    if raw then
      local units, since = unpack('<I7I6', raw, 8)
      if units > 0 and at - last + since < period then start, used = last - since, units end
    end
  else
    start = anchored == CALENDAR and extra or at - at % period
    if at < start or at >= start + period then return -1, 0, start end
    used = raw and last >= start and unpack('<I7', raw, 8) or 0
  end
  return max(capacity - used, 0), used, start
end

local function spend(used, cost, period, anchored, capacity)
  return max(used, min(used + cost, capacity))
end

local function wait(_, start, at, cost, period)
  return start + period - at
end

local function reset(used, start, at, period)
  if used == 0 then return 0 end
  return start + period - at
end

local function store(used, start, at, period, anchored)
  if anchored == FIRST_REQUEST then return pack('<i7I7I6', at, used, at - start) end
  return pack('<i7I7', at, used)
end

local function refund(raw, cost, spent_at, period, anchored, capacity, tick_us, extra)
  local last, used = unpack('<i7I7', raw)
  local start
  if anchored == FIRST_REQUEST then
    start = last - unpack('<I6', raw, 15)
  else
    start = anchored == CALENDAR and extra or spent_at - spent_at % period
  end
  if min(spent_at, last) < start or max(spent_at, last) >= start + period then return nil end
  return pack('<i7I7', last, max(used - cost, 0)) .. string.sub(raw, 15)
end

-- The full quota is back at the end of a window: what is spent in one seldom changes that.
local HOLDS, ENDS = false, true

return { look, spend, wait, reset, store, refund, HOLDS, ENDS }
