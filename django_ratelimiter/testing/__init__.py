"""For tests of projects that use the limiter: a test's own rules, clock and counts, without Redis or database."""

from __future__ import annotations

from .assertions import aassert_limited, assert_limited
from .override import START, FrozenClock, RulesInForce, clear_counts, override_rules

__all__ = [
    "START",
    "FrozenClock",
    "RulesInForce",
    "aassert_limited",
    "assert_limited",
    "clear_counts",
    "override_rules",
]
