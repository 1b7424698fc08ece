-- Token bucket. State: last, missing, parts. x: missing; y is not used. The same steps as in token_bucket.py.

--@whole
if #raw ~= 20 then raw = nil end

--@look
x, y = 0, 0
if raw then
  local missing, parts = unpack('<I7I6', raw, 8)
  if parts ~= period then
    -- rest * period / parts rounded up, by long multiplication, because the product can pass 2^53. All are below 2^52.
    local rest, factor, bit, whole, part = missing % parts, period, 1, 0, 0
    while bit <= factor do bit = 2 * bit end
    while bit > 1 do
      bit, whole, part = bit / 2, 2 * whole, 2 * part
      if part >= parts then whole, part = whole + 1, part - parts end
      if factor >= bit then
        factor, part = factor - bit, part + rest
        if part >= parts then whole, part = whole + 1, part - parts end
      end
    end
    -- tokens * period can pass 2^53 only if it is above the full bucket; then it is limited to that.
    missing = floor(missing / parts) * period + whole + (part > 0 and 1 or 0)
  end
  if missing > capacity * period then missing = capacity * period end
  local filled = (at - at % tick_us - (last - last % tick_us)) / tick_us * rate -- rounded above 2^53, but above missing
  if filled < missing then x = missing - filled end
end
remaining = capacity - ceil(x / period)

--@spend
x = min(before + cost * period, capacity * period)
state = pack('<i7I7I6', at, x, period)

--@wait
wait = (floor(at / tick_us) + ceil((x - (capacity - cost) * period) / rate)) * tick_us - at

--@reset
reset = x > 0 and ceil(x / rate) * tick_us - at % tick_us or 0

--@refund
local last, missing, parts = unpack('<i7I7I6', raw)
state = pack('<i7I7I6', last, max(missing - cost * parts, 0), parts)
