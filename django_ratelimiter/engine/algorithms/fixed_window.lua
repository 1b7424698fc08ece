-- Fixed window. State: last, used, and with first_request the age of the window. x: used; y: start of the window.
-- The same steps as in fixed_window.py.
local FIRST_REQUEST, CALENDAR = 1, 2

--@whole
if #raw ~= (rate == FIRST_REQUEST and 20 or 14) then raw = nil end

--@look
if rate == FIRST_REQUEST then
  x, y = 0, at
  if raw then
    local used, since = unpack('<I7I6', raw, 8)
    if used > 0 and at - last + since < period then x, y = used, last - since end
  end
else
  y = rate == CALENDAR and extra or at - at % period
  x = raw and last >= y and unpack('<I7', raw, 8) or 0
end
remaining = x < capacity and capacity - x or 0
if at < y or at >= y + period then remaining = -1 end

--@spend
state = rate == FIRST_REQUEST and pack('<i7I7I6', at, x, at - y) or pack('<i7I7', at, x)

--@wait
wait = y + period - at

--@reset
reset = x > 0 and y + period - at or 0

--@refund
local last, used = unpack('<i7I7', raw)
local start = rate == CALENDAR and extra or spent_at - spent_at % period
if rate == FIRST_REQUEST then start = last - unpack('<I6', raw, 15) end
if min(spent_at, last) >= start and max(spent_at, last) < start + period then
  state = pack('<i7I7', last, max(used - cost, 0)) .. sub(raw, 15)
end
