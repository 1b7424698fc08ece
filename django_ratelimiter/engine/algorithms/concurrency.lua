-- Concurrency. State: as in sliding_window_log. The same steps as in concurrency.py.

--@wait
wait = unpack('<i7', raw, y) + period - at
