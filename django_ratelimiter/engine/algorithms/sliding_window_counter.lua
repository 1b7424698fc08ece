-- Sliding window counter. State: last, current, previous. See sliding_window_counter.py, the twin of this file.
-- previous may exceed the capacity after a limit was lowered; its product may then pass 2^53 and be rounded,
-- but only where the other side of the comparison is far below it.
local function look(raw, last, at, period, rate, capacity, tick_us)
  local tick = floor(at / tick_us)
  local current, previous = 0, 0
  if raw then
    local windows = floor(tick / period) - floor(floor(last / tick_us) / period)
    if windows == 0 then
      current, previous = unpack('<I6I6', raw, 8)
    elseif windows == 1 then
      previous = unpack('<I6', raw, 8)
    end
  end
  local left = (capacity - current) * period - previous * (period - tick % period)
  return max(floor(left / period), 0), current, previous
end

local function spend(current, cost, period, rate, capacity)
  return max(current, min(current + cost, capacity))
end

local function wait(current, previous, at, cost, period, rate, capacity, tick_us)
  local start = floor(floor(at / tick_us) / period) * period
  local room = capacity - current - cost
  local tick
  if room >= 0 then
    tick = start + period - floor(room * period / previous)
  else
    tick = start + 2 * period - floor((capacity - cost) * period / current)
  end
  return tick * tick_us - at
end

local function reset(current, previous, at, period, rate, capacity, tick_us)
  local windows = current > 0 and 2 or previous > 0 and 1 or 0
  if windows == 0 then return 0 end
  return (floor(floor(at / tick_us) / period) * period + windows * period) * tick_us - at
end

local function store(current, previous, at)
  return pack('<i7I6I6', at, current, previous)
end

local function refund(raw, cost, spent_at, period, rate, capacity, tick_us)
  local last, current, previous = unpack('<i7I6I6', raw)
  local window = period * tick_us
  if floor(last / window) ~= floor(spent_at / window) then return nil end
  return pack('<i7I6I6', last, max(current - cost, 0), previous)
end

-- The full quota is back at the end of a window: what is spent in one seldom changes that.
local HOLDS, ENDS = false, true

return { look, spend, wait, reset, store, refund, HOLDS, ENDS }
