"""A forecast for the panel: as text, with names for slugs and digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _

from ...engine.limits import Limit
from ...forecast.samples import answer, words
from ...forecast.samples.doubts import doubts, is_partial
from ...forecast.samples.forecast import Forecast
from ...forecast.samples.periods import one_day
from ...forecast.samples.reading import aliases
from ...models import Tier
from ...rules.formatting import limits_in_words, units
from ...rules.records import RuleRecord
from ...usage.reports import chart
from ...usage.reports.coverage import Period, read_coverage
from ..names import names_in_words
from . import line
from .choices import ChoicesForm
from .line import LimitRow

#: Maximum number of callers below the first sentence: those that would be rejected, the busiest first.
MAX_REJECTED: Final = 5


def panel_context(
    request: HttpRequest, before: RuleRecord | None, after: RuleRecord, choices: ChoicesForm, rows: Sequence[LimitRow]
) -> dict[str, Any]:
    """Return the context of the panel. before: the saved rule, `None` = it is not in use; after: the form's."""
    coverage, tiers = read_coverage(), dict(Tier.objects.values_list("slug", "name"))

    def read() -> list[tuple[str, Forecast]]:
        return [(each.name, Forecast(before, after, each.period, coverage=coverage)) for each in choices.periods]

    forecasts = read()
    if not forecasts[0][1].sampled and choices.choose_week():
        forecasts = read()
    row, limit = _chosen(choices, rows, before) if any(each.sampled for _name, each in forecasts) else (None, None)
    return {
        "before_in_words": limits_in_words(before) if before else "",
        "after_in_words": limits_in_words(after),
        "is_off": after.is_off,
        "periods": [_period(request, name, forecast, tiers) for name, forecast in forecasts],
        "line": None if row is None or limit is None else _line(forecasts, row, limit, choices),
    }


def _chosen(
    choices: ChoicesForm, rows: Sequence[LimitRow], before: RuleRecord | None
) -> tuple[LimitRow | None, Limit | None]:
    """Return the limit of the line: the selected one, else the first that changes or can have one."""
    wanted = choices.cleaned_data.get("limit") if choices.is_bound else ""
    found = [(row, limit) for row in rows if (limit := line.engine_limit(row)) is not None]
    saved = {(tier, each.limit) for tier, limits in (before.limits if before else {}).items() for each in limits}
    changed = [(row, limit) for row, limit in found if (row.limit.tier and row.limit.tier.slug, limit) not in saved]
    first = next(iter(changed or found), (None, None))
    return next((pair for pair in found if pair[0].name == wanted), first)


def _line(
    forecasts: Sequence[tuple[str, Forecast]], row: LimitRow, limit: Limit, choices: ChoicesForm
) -> dict[str, Any]:
    quota = choices.quota_for(row.name, limit.quota)
    tier = row.limit.tier.slug if row.limit.tier else None
    lines = []
    for name, forecast in forecasts:
        drawn = line.draw(forecast.rates(tier, limit), quota, line.label_of(limit))
        if drawn.sampled < forecast.sampled:  # the sentence above the chart is about all of them
            name += " " + _of_tier(row, drawn.sampled, forecast.sampled)
        lines.append((name, drawn))
    return {
        "name": row.name,
        "unit": line.label_of(limit),
        "quota_label": line.quota_label(limit),
        "quota": quota,
        "in_form": limit.quota,
        "above_text": _above_text(),
        "top": max((each.top for _name, each in lines), default=1),
        "periods": [(name, each, _above(each)) for name, each in lines],
    }


def _of_tier(row: LimitRow, some: int, every: int) -> str:
    text = _("(%(tier)s: %(some)s of the %(all)s sampled callers)")
    return text % {"tier": row.tier_name, "some": units(some), "all": units(every)}


def _above_text() -> str:
    return _("%(count)s of %(all)s sampled callers (%(percent)s %%)")


def _above(drawn: line.Line) -> str:
    share = 100 * drawn.above / drawn.sampled if drawn.sampled else 0
    return _above_text() % {"count": units(drawn.above), "all": units(drawn.sampled), "percent": words.decimal(share)}


def _period(request: HttpRequest, name: str, forecast: Forecast, tiers: Mapping[str, str]) -> dict[str, Any]:
    is_day = name == one_day(timezone.localtime(forecast.period.start).date()).name
    own = {"name": name, "is_day": is_day, "forecast": forecast, "answer": answer.answer(forecast)}
    if not forecast.sampled:
        return own
    hours = [(chart.span(Period(each.start, each.end)), each) for each in forecast.by_hour]
    text = _("%(time)s: now %(before)s, then %(after)s")
    labels = [
        text % {"time": time, "before": words.number(each.before), "after": words.number(each.after)}
        for time, each in hours
    ]
    pairs = [{"now": each.before.about, "then": each.after.about} for _time, each in hours]
    known = names_in_words(request.user, aliases(forecast.source, [each.who for each in forecast.top]))
    top = [(known.get(each.who, ""), _tier_name(each.tier, tiers), each) for each in forecast.top]
    return {
        **own,
        "rejected": [each for each in top if each[2].after][:MAX_REJECTED],
        "tiers": [(_tier_name(each.tier, tiers), each) for each in forecast.by_tier],
        "counted": forecast.counted,
        "counted_by_sample": forecast.rejected_requests(answer.NOW),
        "hours": hours,
        "bars": chart.bars(pairs, labels, beside=True),
        "top_bar": round(max((max(pair.values()) for pair in pairs), default=0) or 1),
        "doubts": doubts(forecast),
        "is_partial": is_partial(forecast),
        "top": top,
    }


def _tier_name(slug: str, tiers: Mapping[str, str]) -> str:
    return tiers.get(slug, slug) or _("no tier")
