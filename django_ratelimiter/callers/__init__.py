"""One caller: who it is, its tier and access entries and why, the state of its counters, and acts for it."""
