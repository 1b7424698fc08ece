"""The callers of a limit, sorted by their rate, and the line that is its quota."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import log1p
from typing import Any, Final, NamedTuple

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...engine.limits import Limit
from ...models import RuleLimit
from ...rules.formatting import CALENDAR_UNITS, limit_in_short, per
from ...usage.reports.chart import Bar, bars, percent
from ..formatting import others_in_words

#: Bars of the picture, and steps of the callers' rates for the script.
MAX_BARS: Final = 48
MAX_STEPS: Final = 500


class LimitRow(NamedTuple):
    """A limit of the form. name: the prefix of its fields, without the hyphen. others: as in the form."""

    name: str
    limit: RuleLimit
    others: str

    @property
    def choice(self) -> tuple[str, str]:
        """Return its name and its label."""
        limit = engine_limit(self)
        return self.name, f"{self.tier_name}: {limit_in_short(limit)}" if limit else self.limit.in_short

    def holds_for(self, tier: str, limits: Iterable[tuple[LimitRow, Limit]]) -> bool:
        """Return whether it holds for callers of this tier, among these limits."""
        own = self.limit.tier.slug if self.limit.tier else None
        return tier == own if own else not any(row.limit.tier and row.limit.tier.slug == tier for row, _limit in limits)

    @property
    def tier_name(self) -> str:
        """Return the name of its tier."""
        return self.limit.tier.name if self.limit.tier else self.others


class Line(NamedTuple):
    """The picture of one period. bars: the callers of some ranks, the busiest first, each with its rate.

    steps: pairs of a rate and the number of sampled callers that reach it, highest first. top: the rate at the upper
    end. y: position of the quota. above: sampled callers above it, of `sampled`.
    """

    bars: list[tuple[int, Bar]]
    marks: list[tuple[str, int]]
    steps: list[tuple[int, int]]
    top: int
    y: str
    above: int
    sampled: int


def limit_rows(formsets: Iterable[Any]) -> list[LimitRow]:
    """Return the limits of the form as entered, without those that are to be deleted."""
    rows = []
    for formset in (each.formset for each in formsets if issubclass(each.formset.model, RuleLimit)):
        forms = [*formset.initial_forms, *(each for each in formset.extra_forms if each.has_changed())]
        rows += [
            LimitRow(
                form.prefix,
                form.instance,
                form.fields["tier"].choices[0][1] if "tier" in form.fields else others_in_words(),
            )
            for form in forms
            if not getattr(form, "cleaned_data", {}).get("DELETE")
        ]
    return rows


def engine_limit(row: LimitRow) -> Limit | None:
    """Return the limit of a row; `None` = it is unlimited, cannot be enforced, or counts more than times."""
    try:
        limit = row.limit.to_limit()
    except (ValueError, TypeError):
        return None
    return limit if limit is not None and not (limit.holds or limit.holds_leases) else None


def draw(ordered: Sequence[int], quota: int, unit: str) -> Line:
    """Return the picture for callers with these sorted rates, and the line. The scale is logarithmic."""
    busiest = list(reversed(ordered))
    top = max(busiest[0] if busiest else 1, quota, 1) * 5 // 4 + 1
    ranks = _ranks(len(busiest))
    rates = [busiest[rank - 1] for rank in ranks]
    text = _("No. %(rank)s: %(rate)s/%(unit)s")
    labels = [text % {"rank": rank, "rate": rate, "unit": unit} for rank, rate in zip(ranks, rates, strict=True)]
    drawn = bars([{"rate": log1p(rate)} for rate in rates], labels, log1p(top))
    marks = [(percent(100 - _height(rate, top)), rate) for rate in (10**power for power in range(13)) if rate <= top]
    above = len(ordered) - bisect_right(ordered, quota)
    place = percent(100 - _height(quota, top))
    return Line(list(zip(rates, drawn, strict=True)), marks, _steps(busiest), top, place, above, len(ordered))


def _ranks(count: int) -> list[int]:
    """Return ranks from 1 to the count: all of the first ones, and ever fewer of the others."""
    if count <= MAX_BARS:
        return list(range(1, count + 1))
    return sorted({round(count ** (place / (2 * MAX_BARS))) for place in range(2 * MAX_BARS + 1)})


def _steps(busiest: Sequence[int]) -> list[tuple[int, int]]:
    steps: dict[int, int] = {}
    for place, rate in enumerate(busiest, 1):
        steps[rate] = place
    found = list(steps.items())
    if len(found) > MAX_STEPS:  # the lowest rates are the closest to each other
        found = found[: MAX_STEPS // 2] + found[MAX_STEPS // 2 :: len(found) // (MAX_STEPS // 2)]
    return found


def _height(rate: int, top: int) -> float:
    return 100 * log1p(rate) / log1p(top)


def quota_label(limit: Limit) -> str:
    """Return the label of the quota field: "Quota per day"."""
    name = capfirst(_("quota"))
    return f"{name} / {CALENDAR_UNITS[limit.calendar]}" if limit.calendar else per(name, limit.window_us)


def label_of(limit: Limit) -> str:
    """Return the unit of a rate: "/min"."""
    return limit_in_short(limit).partition("/")[2]
