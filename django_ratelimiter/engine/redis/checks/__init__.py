"""Checks of a server: does it run our scripts, and does it keep counters?"""
