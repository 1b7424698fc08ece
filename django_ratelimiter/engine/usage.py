"""How usage is written down: one count per minute for each set of labels and what became of its charges.

A field is the labels of a call's charges, one a line, then a line with a letter for each charge: `a` admitted by its
rule, `s` admitted beyond its soft quota, `d` denied by its rule. A shadow charge's label starts with `~`; a charge
that is not counted has an empty line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .base import Charge, UsageCount

SHADOW = "~"

#: The field that only makes a Redis hash a table, see check.lua.
FILLER = ""


def labels_of(charges: Sequence[Charge]) -> str:
    """The lines of the charges' labels; empty if none is counted. ValueError for a label of several lines."""
    lines = [
        "" if charge.usage is None else charge.usage if charge.gating else SHADOW + charge.usage for charge in charges
    ]
    text = "\n".join(lines)
    if text.count("\n") != max(len(lines) - 1, 0):
        raise ValueError("usage: a label is one line of text.")
    return text if any(lines) else ""


def counts_of(minute: int, fields: Mapping[str, int]) -> list[UsageCount]:
    """Expand the fields of one minute into counts per label. A label with several charges counts once a call."""
    totals: dict[str, list[int]] = {}
    for field, calls in fields.items():
        *labels, outcomes = field.split("\n")
        worst: dict[str, tuple[str, bool]] = {}
        for label, outcome in zip(labels, outcomes, strict=True):
            shadow = label.startswith(SHADOW)
            name = label.removeprefix(SHADOW)
            if name:
                # "a" < "d" < "s"; a denial outweighs a soft excess
                before = worst.get(name, ("a", shadow))[0]
                worst[name] = ("d" if "d" in (before, outcome) else max(before, outcome), shadow)
        for name, (outcome, shadow) in worst.items():
            _add(totals.setdefault(name, [0, 0, 0, 0]), outcome, shadow, calls)
    return [UsageCount(minute, label, *counts) for label, counts in totals.items()]


def _add(counts: list[int], outcome: str, shadow: bool, calls: int) -> None:
    """counts: allowed, denied, shadow_denied, soft_exceeded."""
    if outcome == "d":
        counts[2 if shadow else 1] += calls
    else:
        counts[0] += calls
        counts[3] += calls if outcome == "s" else 0


def minute_of(batch: str) -> int:
    """The minute, counted from the Unix epoch, that a batch's name begins with."""
    return int(batch.partition(":")[0])


def in_order(batches: Iterable[str]) -> list[str]:
    """Batches from the oldest minute to the latest."""
    return sorted(batches, key=lambda batch: (minute_of(batch), batch))
