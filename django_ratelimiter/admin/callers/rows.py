"""The rows of a caller's page: counters as rows of a table, figures as text, links if the operator may open them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...inspection import history
from ...inspection.caller import Caller, by_key
from ...inspection.counters import Counter, Counters
from ...inspection.grounds import as_typed
from ...inspection.words import at_limit_in_words
from ...models import AccessEntry, TierAssignment
from ...rules.formatting import duration, units, until_in_words
from ...rules.inline import identity_of
from ...rules.records import RuleRecord
from ...usage.reports import chart
from ...values.terminal import without_controls
from ..formatting import period_in_words, split_in_words
from ..identities import may_see_names
from ..logged import asked_about
from ..viewer import Viewer
from .links import BACK

#: Maximum number of rows of usage.
MAX_DAYS: Final = 200


class CounterRow(NamedTuple):
    """A counter as text. used: "" = not known."""

    counter: Counter
    rule_url: str
    limit: str
    counted_by: str
    used: str
    full: str
    until: str


class RuleLink(NamedTuple):
    """A rule's name and the URL of its page; "" = no access. until: when it allows requests again; "" = not shown."""

    name: str
    url: str
    until: str = ""


def explain_url(viewer: Viewer, caller: Caller, rule: RuleRecord | None) -> str:
    """Return the URL of the page that explains a request of this caller. rule: that rejected it, if one led here."""
    values = {
        "user": by_key(caller.user_id) if caller.user_id else "",
        "ip": caller.address or "",
        "api_key": "" if caller.owner else caller.api_key or "",  # that page needs the key itself
    }
    known = {name: value for name, value in values.items() if value}
    digest = caller.digest_for(rule) if rule is not None else None
    return viewer.explain_url(asked_about(rule, digest, known) if rule is not None and digest else known)


def counter_rows(found: Counters, viewer: Viewer) -> list[CounterRow]:
    """Return the rows: first the counters that block the caller, its own before shared ones, then the fullest."""
    counters = sorted(
        found.counters, key=lambda each: (not each.blocked, each.allowed is not False, each.shared, -each.percent)
    )
    return [_row(counter, viewer) for counter in counters]


def _row(counter: Counter, viewer: Viewer) -> CounterRow:
    known = counter.verdict is not None
    full_in = round(counter.verdict.reset_after * 1_000_000) if counter.verdict else 0
    by = split_in_words(counter.rule)
    if counter.stands_in:
        by = _("IP address, because these are missing: %(names)s") % {"names": by}
    return CounterRow(
        counter,
        viewer.rule_url(counter.rule.slug),
        _limit(counter),
        _("by %(by)s") % {"by": by} if counter.rule.partition_by else by,
        _used(counter) if known else "",
        _rough(full_in) if known else "",
        _("until %(until)s") % {"until": until_in_words(counter.blocked_until)} if counter.blocked_until else "",
    )


def _limit(counter: Counter) -> str:
    if not counter.is_assumed or not counter.tier:
        return counter.limit
    return _("%(limit)s, if in tier %(tier)s") % {"limit": counter.limit, "tier": counter.tier}


def _used(counter: Counter) -> str:
    figures = {"used": units(counter.used or 0), "capacity": units(counter.capacity), "left": units(counter.left or 0)}
    if not counter.is_assumed:
        return _("%(used)s of %(capacity)s, %(left)s left") % figures
    return (_("%(used)s used") if counter.left else _("%(used)s or more used")) % figures


def _rough(microseconds: int) -> str:
    """Return a duration as text, as precise as operators need it."""
    seconds = -(-microseconds // 1_000_000)
    for size in (86_400, 3_600, 60):
        if seconds >= 2 * size:
            return duration(-(-seconds // size) * size * 1_000_000)
    return duration(seconds * 1_000_000) if seconds else _("now")


class State(NamedTuple):
    """The rules that reject the caller now, for the first line of the page.

    own: those with the caller's own counter, with the URLs of their pages; "" = none. until: when all of them allow
    requests again; "" = never, or not known. is_latest: some do so earlier, and each has its own time. shared: what is
    at its limit for all callers, and by which rule.
    elsewhere: those for a scope that no view names.
    """

    own: Sequence[RuleLink]
    until: str
    is_latest: bool
    shared: Sequence[tuple[str, RuleLink]]
    elsewhere: Sequence[RuleLink]


def state_of(found: Counters, viewer: Viewer) -> State:
    """Return the state of the caller."""
    blocked, shared, elsewhere = found.blocking
    ends = _ends(blocked)
    is_latest = len(set(ends.values())) > 1
    in_words = map(at_limit_in_words, {each.rule.slug: each.rule for each in shared}.values())
    return State(
        _named(blocked, viewer, ends if is_latest else {}),
        _until(blocked),
        is_latest,
        list(zip(in_words, _named(shared, viewer, _ends(shared)), strict=True)),
        _named(elsewhere, viewer, _ends(elsewhere)),
    )


def _ends(blocked: Iterable[Counter]) -> dict[str, str]:
    """Return when each rule allows requests again, by slug."""
    by_rule: dict[str, list[Counter]] = {}
    for each in blocked:
        by_rule.setdefault(each.rule.slug, []).append(each)
    return {slug: _until(counters) for slug, counters in by_rule.items()}


def _named(counters: Iterable[Counter], viewer: Viewer, ends: Mapping[str, str]) -> list[RuleLink]:
    """Return the rules of these counters, each once. ends: when they allow requests again, by slug, if shown."""
    rules = {each.rule.slug: each.rule for each in counters}
    return [RuleLink(rule.name, viewer.rule_url(slug), ends.get(slug, "")) for slug, rule in rules.items()]


def _until(blocked: Sequence[Counter]) -> str:
    """Return until when the caller is rejected by some of these; "" = not at all, or for ever."""
    ends: list[datetime] = [each.blocked_until for each in blocked if each.blocked_until]
    return until_in_words(max(ends)) if len(ends) == len(blocked) and ends else ""


def rows_with_period(rows: Iterable[Any], viewer: Viewer, back: str, *counting: int | None) -> list[dict[str, Any]]:
    """Return the rows of assignments or access entries. counting: the primary keys of those that apply.

    back: the query of the caller's page, to which their forms return.
    """
    return [
        {
            "row": each,
            "url": viewer.row_url(each) and viewer.url(f"{each._meta.model_name}_change", each.pk, **{BACK: back}),
            "end_url": viewer.form_url("delete", type(each), each.pk, **{BACK: back}),
            "period": period_in_words(*period_of(each)),
            "times": "" if getattr(each, "multiplier", 1) == 1 else as_typed(each.multiplier),
            "counts": each.pk in counting,
        }
        for each in rows
    ]


def period_of(row: TierAssignment | AccessEntry) -> tuple[datetime | None, datetime | None]:
    """Return when a row begins and ends; `None` = always."""
    return (None, row.expires_at) if isinstance(row, AccessEntry) else (row.starts_at, row.ends_at)


def usage_rows(counters: Counters) -> dict[str, Any]:
    """Return the known usage, the latest first, with the names of the rules; and its chart, if there is any."""
    usage = history.usage_of({each.rule.slug: each.digest for each in counters.own})
    names = {each.rule.slug: each.rule.name for each in counters.own}
    days = [day._replace(rule=names[day.rule]) for day in usage.days[: -MAX_DAYS - 1 : -1]]
    identities = {identity: each.digest for each in counters.own if (identity := identity_of(each.rule))}
    totals = history.totals_of(usage, identities)
    has_any = any(each.requests for each in totals)
    return {"usage": usage._replace(days=days), "usage_chart": chart.days(totals) if has_any else None}


def name_of(caller: Caller, request: HttpRequest) -> str:
    """Return the name of the user, if this reader may view users or the names of callers."""
    if caller.user is None or not may_see_names(request.user):
        return ""
    return without_controls(str(caller.user.get_username()))
