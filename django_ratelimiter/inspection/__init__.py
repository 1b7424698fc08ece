"""For operators: why a request gets its answer, and one caller with its counters and limits."""
