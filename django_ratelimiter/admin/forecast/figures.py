"""A forecast for the panel: as text, with names for slugs and digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...engine.limits import Limit
from ...forecast.answer import CALLERS, REQUESTS, RuleForecast, decimal
from ...forecast.samples.reading import aliases
from ...forecast.samples.source import Samples
from ...forecast.tally import AFTER, BEFORE, NEWLY
from ...models import Tier
from ...rules.formatting import limits_in_words, units
from ...rules.records import RuleRecord
from ...usage.reports.coverage import read_coverage
from ..identities import names_in_words
from . import line
from .choices import ChoicesForm
from .line import LimitRow

#: Maximum number of callers below the first sentence.
MAX_REJECTED: Final = 5


def panel_context(
    request: HttpRequest, before: RuleRecord | None, after: RuleRecord, choices: ChoicesForm, rows: Sequence[LimitRow]
) -> dict[str, Any]:
    """Return the context of the panel. before: the saved rule, `None` = it is not in use; after: the form's."""
    coverage, tiers = read_coverage(), dict(Tier.objects.values_list("slug", "name"))

    def read() -> tuple[str, Samples, RuleForecast]:
        name, period = choices.named_period
        samples = Samples(before, after, period, coverage)
        return name, samples, samples.forecast(is_change=before is not None)

    name, samples, found = read()
    if not found.sampled and choices.choose_week():
        name, samples, found = read()
    known = names_in_words(request.user, aliases(samples.source, [each.who for each in found.tally.top]))
    return {
        "period": name,
        "dates": samples.period,
        "answer": found.answer(),
        "found": found,
        "before_in_words": limits_in_words(before) if before else "",
        "after_in_words": limits_in_words(after),
        "is_off": after.is_off,
        "share_of_callers": found.share(CALLERS),
        "share_of_requests": found.share(REQUESTS),
        "top": [
            (known.get(each.who, ""), _tier_name(each.tier, tiers), each) for each in found.tally.top[:MAX_REJECTED]
        ],
        "tiers": [
            (_tier_name(tier, tiers), *(found.effect(what, tier) for what in (BEFORE, AFTER, NEWLY)))
            for tier in sorted(found.tally.by_tier)
        ],
        "line": _line(samples, found, choices, rows) if found.shows_figures else None,
    }


def _line(
    samples: Samples, found: RuleForecast, choices: ChoicesForm, rows: Sequence[LimitRow]
) -> dict[str, Any] | None:
    """Return the picture of the selected limit, else of the one that would reject the most callers."""
    limits = [(row, limit) for row in rows if (limit := line.engine_limit(row)) is not None]
    wanted = choices.cleaned_data.get("limit") if choices.is_bound else ""
    chosen = [pair for pair in limits if pair[0].name == wanted] or _most_rejecting(found, limits)
    drawn = [_drawn(samples, found, choices, row, limit) for row, limit in chosen]
    return max(drawn, key=lambda each: each["drawn"].above, default=None)


def _most_rejecting(found: RuleForecast, limits: Sequence[tuple[LimitRow, Limit]]) -> list[tuple[LimitRow, Limit]]:
    """Return the limits of the tier of whose callers the most are newly rejected, else rejected at all."""
    before = found.before.limits if found.before else {}
    saved = {(tier, each.limit) for tier, several in before.items() for each in several}

    def weight(row: LimitRow, limit: Limit) -> tuple[int, int, bool]:
        counts = [sums.counts[0][CALLERS] for tier, sums in found.tally.by_tier.items() if row.holds_for(tier, limits)]
        is_changed = (row.limit.tier.slug if row.limit.tier else None, limit) not in saved
        return sum(each[NEWLY] for each in counts), sum(each[AFTER] for each in counts), is_changed

    weights = [weight(*pair) for pair in limits]
    return [pair for pair, each in zip(limits, weights, strict=True) if each == max(weights)]


def _drawn(samples: Samples, found: RuleForecast, choices: ChoicesForm, row: LimitRow, limit: Limit) -> dict[str, Any]:
    quota, unit = choices.quota_for(row.name, limit.quota), line.label_of(limit)
    drawn = line.draw(samples.needed_quotas(row.limit.tier.slug if row.limit.tier else None, limit), quota, unit)
    of_tier = ""
    if drawn.sampled < found.sampled:  # the sentence above the chart is about all of them
        text = _("%(tier)s: %(some)s of the %(all)s sampled callers")
        of_tier = text % {"tier": row.tier_name, "some": units(drawn.sampled), "all": units(found.sampled)}
    share = 100 * drawn.above / drawn.sampled if drawn.sampled else 0
    above_text = _("%(count)s of %(all)s sampled callers (%(percent)s %%)")
    words = {"count": units(drawn.above), "all": units(drawn.sampled), "percent": decimal(share)}
    return {
        "name": row.name,
        "drawn": drawn,
        "of_tier": of_tier,
        "unit": unit,
        "quota_label": line.quota_label(limit),
        "quota": quota,
        "in_form": limit.quota,
        "above_text": above_text,
        "above": above_text % words,
    }


def _tier_name(slug: str, tiers: Mapping[str, str]) -> str:
    return tiers.get(slug, slug) or _("no tier")
