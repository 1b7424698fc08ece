-- Concurrency. State: as of sliding_window_log. See concurrency.py, the twin of this file.
local log = algorithm('sliding_window_log')

local function wait(held, live, at, cost, period, rate, capacity, tick_us, extra, raw)
  return unpack('<i7', raw, live) + period - at
end

return { log[1], log[2], wait, log[4], log[5], log[6] }
