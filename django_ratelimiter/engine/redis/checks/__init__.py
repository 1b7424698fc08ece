"""Whether a server suits the engine: does it run our scripts, and does it keep counters?"""
