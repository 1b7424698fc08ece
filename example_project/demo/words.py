"""Rules and limits as short texts, for the demo's tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..catalogue import BUCKET, DAY, EXACT, FIXED, HOUR, MINUTE, SLIDING, Limit, Rule

_ALGORITHMS: Final = {FIXED: "fixed window", SLIDING: "sliding window", EXACT: "exact window", BUCKET: "token bucket"}
_PARTITIONS: Final = {"ip": "address", "user": "user", "api_key": "API key"}
_UNITS: Final = {1: "second", MINUTE: "minute", HOUR: "hour", DAY: "day"}


def rule_in_words(rule: Rule) -> str:
    """Return its algorithms, and what its counters are split by."""
    used = [limit.algorithm for limits in rule.limits.values() for limit in limits if limit.quota]
    algorithms = " and ".join(_ALGORITHMS[name] for name in dict.fromkeys(used))
    per = " and ".join(_PARTITIONS[name] for name in rule.partition_by)
    words = f"{algorithms} per {per}" if per else f"{algorithms} for the whole site"
    if rule.cost > 1:
        words += f", {rule.cost} units a request"
    return f"{words}; a shadow rule, rejects no request" if rule.mode == "shadow" else words


def limits_in_words(limits: Iterable[Limit]) -> str:
    """Return all limits of one tier."""
    return "; ".join(_limit_in_words(limit) for limit in limits)


def _limit_in_words(limit: Limit) -> str:
    if not limit.quota:
        return "unlimited"
    unit = max(unit for unit in _UNITS if limit.window % unit == 0)
    count = limit.window // unit
    window = _UNITS[unit] if count == 1 else f"{count} {_UNITS[unit]}s"
    burst = f", burst {limit.burst}" if limit.burst else ""
    return f"{limit.quota}/{window}{burst}"
