-- Sliding window counter. State: last, current, previous. x: current; y: previous. The same steps as in
-- sliding_window_counter.py.

--@whole
if #raw ~= 19 then raw = nil end

--@look
-- y may exceed the capacity after a limit was lowered. Then its product may pass 2^53 and be rounded, but the other
-- side of the comparison is far below.
local tick = (at - at % tick_us) / tick_us
local passed = tick % period -- of this window
x, y = 0, 0
if raw then
  local before = (last - last % tick_us) / tick_us
  local ticks = tick - passed - (before - before % period) -- from the start of that window to this one
  if ticks == 0 then
    x, y = unpack('<I6I6', raw, 8)
  elseif ticks == period then
    y = unpack('<I6', raw, 8)
  end
end
remaining = floor(((capacity - x) * period - y * (period - passed)) / period)
if remaining < 0 then remaining = 0 end

--@spend
state = pack('<i7I6I6', at, x, y)

--@wait
local start = floor(floor(at / tick_us) / period) * period
local room = capacity - x - cost
if room >= 0 then
  wait = (start + period - floor(room * period / y)) * tick_us - at
else
  wait = (start + 2 * period - floor((capacity - cost) * period / x)) * tick_us - at
end

--@reset
local windows = x > 0 and 2 or y > 0 and 1 or 0
reset = windows > 0 and (windows * period - (at - at % tick_us) / tick_us % period) * tick_us - at % tick_us or 0

--@refund
local last, current, previous = unpack('<i7I6I6', raw)
local window = period * tick_us
if floor(last / window) == floor(spent_at / window) then
  state = pack('<i7I6I6', last, max(current - cost, 0), previous)
end
