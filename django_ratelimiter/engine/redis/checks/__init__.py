"""Whether a server is fit for the engine: does it run our scripts, and does it keep counters?"""
