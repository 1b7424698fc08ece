-- Fixed window. State: last, used. See fixed_window.py, the twin of this file.
local function look(raw, last, now, period, rate, capacity, tick)
  local used = 0
  if raw and floor(last / period) == floor(now / period) then used = unpack('<d', raw, 9) end
  return max(capacity - used, 0), used, 0
end

local function spend(used, cost, period, rate, capacity)
  return max(used, min(used + cost, capacity))
end

local function wait(used, _, now, cost, period)
  return period - now % period
end

local function reset(used, _, now, period)
  if used == 0 then return 0 end
  return period - now % period
end

local function store(used, _, now)
  return pack('<dd', now, used)
end

local function refund(raw, cost, spent_at, period)
  local last, used = unpack('<dd', raw)
  if floor(last / period) ~= floor(spent_at / period) then return nil end
  return pack('<dd', last, max(used - cost, 0))
end

return { look, spend, wait, reset, store, refund }
