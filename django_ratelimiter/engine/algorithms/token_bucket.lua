-- Token bucket. State: last, missing, parts. See token_bucket.py, the twin of this file.

-- a * b / c rounded up, where a < c: by long multiplication, because a * b can pass 2^53. All are below 2^52.
local function share(a, b, c)
  local bit, whole, rest = 1, 0, 0
  while bit <= b do bit = 2 * bit end
  while bit > 1 do
    bit, whole, rest = bit / 2, 2 * whole, 2 * rest
    if rest >= c then whole, rest = whole + 1, rest - c end
    if b >= bit then
      b, rest = b - bit, rest + a
      if rest >= c then whole, rest = whole + 1, rest - c end
    end
  end
  return rest > 0 and whole + 1 or whole
end

local function look(raw, last, at, period, rate, capacity, tick_us)
  if not raw then return capacity, 0, 0 end
  local missing, parts = unpack('<I7I6', raw, 8)
  local full = capacity * period
  if parts ~= period then
    local tokens, rest = floor(missing / parts), missing % parts
    -- tokens * period can pass 2^53 only where it is above full, which it is then cut to.
    missing = tokens * period + share(rest, period, parts)
  end
  missing = min(missing, full)
  local ticks = floor(at / tick_us) - floor(last / tick_us)
  if ticks < ceil(missing / rate) then
    missing = missing - ticks * rate
  else
    missing = 0
  end
  return capacity - ceil(missing / period), missing, 0
end

local function spend(missing, cost, period, rate, capacity)
  return min(missing + cost * period, capacity * period)
end

local function until_back(parts, at, rate, tick_us)
  return (floor(at / tick_us) + ceil(parts / rate)) * tick_us - at
end

local function wait(missing, _, at, cost, period, rate, capacity, tick_us)
  return until_back(missing - (capacity - cost) * period, at, rate, tick_us)
end

local function reset(missing, _, at, period, rate, capacity, tick_us)
  if missing == 0 then return 0 end
  return until_back(missing, at, rate, tick_us)
end

local function store(missing, _, at, period)
  return pack('<i7I7I6', at, missing, period)
end

local function refund(raw, cost)
  local last, missing, parts = unpack('<i7I7I6', raw)
  return pack('<i7I7I6', last, max(missing - cost * parts, 0), parts)
end

return { look, spend, wait, reset, store, refund }
