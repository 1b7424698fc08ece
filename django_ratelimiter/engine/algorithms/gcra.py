"""GCRA, the generic cell rate algorithm of ITU-T I.371, also known as the leaky bucket as a meter.

It allows exactly what a token bucket allows, so it uses that code: the theoretical arrival time is the moment at
which the bucket would be full. That time in whole microseconds is not exact, and its fraction takes as much room as
the two numbers that the token bucket keeps.
"""

from .token_bucket import allow, describe, look, refund, reset, spend, store, wait

__all__ = ["allow", "describe", "look", "refund", "reset", "spend", "store", "wait"]
