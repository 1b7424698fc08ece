-- A part of check.lua: give back what a receipt has spent. A key of another type is as good as missing, as above.
local raw, state = call('MGET', KEYS[first + i])[1], nil
if raw then
  local id, period, rate, capacity, tick_us, _, extra, cost, spent_at = unpack(RECORD, ARGV[3], 72 * i - 23)
  --@refund
  if state then call('SET', KEYS[first + i], state, 'KEEPTTL') end
end
