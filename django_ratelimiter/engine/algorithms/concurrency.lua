-- Concurrency. State: as of sliding_window_log. See concurrency.py, the twin of this file.
--@from sliding_window_log

--@wait
wait = unpack('<i7', raw, y) + period - at
