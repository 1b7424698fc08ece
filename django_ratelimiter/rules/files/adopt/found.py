"""The limits of other limiters: equivalent rules, and what could not be translated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.text import slugify
from django.utils.translation import gettext as _

from ....engine.limits import MAX_ENTRIES
from ..schema import rule_fields

_RATE: Final = re.compile(r"(\d+)\s*/\s*(\d*)\s*([a-z]*)", re.IGNORECASE)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SLUG_LENGTH: Final = 50


@dataclass
class Found:
    """Tiers and rules by slug, in the format of a file, and notes on each rule.

    missed: limits without a rule. differences: between all rules and the limits that they replace.
    """

    tiers: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def add(self, name: str, rule: Mapping[str, Any], notes: Iterable[str] = ()) -> None:
        """Add a rule under an unused slug, unless an identical one exists."""
        rule = {column: rule[column] for column in (*rule_fields(), "limits") if column in rule}  # in the usual order
        stem = slugify(name.replace(":", "-").replace(".", "-").replace("/", "-"))[: _SLUG_LENGTH - 4] or "rule"
        slug, number = stem, 1
        while slug in self.rules:
            if self.rules[slug] == {"name": name[:100], **rule}:
                return
            number += 1
            slug = f"{stem}-{number}"
        self.rules[slug] = {"name": name[:100], **rule}
        self.notes[slug] = [*notes]

    def miss(self, text: str) -> None:
        """Add a limit that could not be translated, once."""
        if text not in self.missed:
            self.missed.append(text)

    def differ(self, text: str) -> None:
        """Add a difference of all rules, once."""
        if text not in self.differences:
            self.differences.append(text)


def seconds_of(rate: Any) -> tuple[int, int] | None:
    """Return the requests and the seconds of a rate such as "100/h", "10/30s" or (10, 30); `None` = it is invalid."""
    if isinstance(rate, tuple | list) and len(rate) == 2 and all(isinstance(each, int) for each in rate):
        return rate[0], rate[1]
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    if match is None or (match[3] and match[3][0].lower() not in _SECONDS):
        return None
    return int(match[1]), int(match[2] or 1) * _SECONDS[(match[3] or "s")[0].lower()]


def limit_of(quota: int, seconds: int, algorithm: str, tier: str | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return a limit in the format of a file, and notes on it."""
    notes = []
    if algorithm == "sliding_window_log" and quota > MAX_ENTRIES:
        algorithm = "sliding_window_counter"
        notes.append(
            _("Counted approximately: more than %(most)s requests are not kept one by one.") % {"most": MAX_ENTRIES}
        )
    found = {"algorithm": algorithm, "quota": quota, "window_seconds": seconds}
    return ({"tier": tier} if tier else {}) | found, notes
