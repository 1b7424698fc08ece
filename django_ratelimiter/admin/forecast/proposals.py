"""Copies a proposal of the advisor to the form of a rule: quota, window and burst of one limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine.registry import Algorithm
from ...forecast.samples.advice import Proposal
from .line import LimitRow


def value_of(proposal: Proposal, rows: Sequence[LimitRow]) -> str:
    """Return the value of the button: the row's name, quota, window and burst; "" if no limit of the form fits.

    The row is that of the tier, else that of every other tier.
    """
    by_tier = {row.limit.tier.slug if row.limit.tier else None: row.name for row in reversed(rows)}
    name = by_tier.get(proposal.tier, by_tier.get(None))
    return f"{name}:{proposal.quota}:{proposal.window}:{proposal.burst or ''}" if name else ""


def with_proposal(typed: Any, value: str) -> Any:
    """Return the form with the proposal; unchanged if the value is not one from `value_of`."""
    name, _, rest = value.partition(":")
    parts = rest.split(":")
    if f"{name}-quota" not in typed or len(parts) != 3 or not all(part.isdecimal() for part in parts[:2]):
        return typed
    quota, window, burst = parts
    changed = typed.copy()
    for field, new in {"quota": quota, "burst": burst, "calendar": ""}.items():
        changed[f"{name}-{field}"] = new
    changed.pop(f"{name}-unlimited", None)
    changed[f"{name}-window_seconds"], changed[f"{name}-window_seconds_unit"] = window, "1"
    counting = [each for each in Algorithm if not each.traits.holds_leases]
    fitting = [each.value for each in counting if ("burst" in each.options) is bool(burst)]
    if typed.get(f"{name}-algorithm") not in fitting:
        changed[f"{name}-algorithm"] = fitting[0]
    return changed
