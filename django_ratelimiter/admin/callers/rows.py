"""The rows of a caller's page, and its links into Django's own forms and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, NamedTuple

from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _

from ...engine.base import tail_of
from ...inspection.caller import Caller, by_key
from ...inspection.caller_report import CallerReport
from ...inspection.counters import Blocking, Counter
from ...inspection.members import Members
from ...inspection.references import Name
from ...inspection.words import at_limit_in_words, counter_in_words
from ...models import AccessEntry, TierAssignment
from ...rules import cache, inline
from ...rules.formatting import until_in_words
from ...rules.records import RuleRecord
from ...rules.tiers import callers_differ
from ...values.access import DIGEST_MARK, digest_value
from ...values.digests import whole
from ...values.references import reference_of
from ..formatting import in_words, period_in_words, split_in_words
from ..pages import NulSafeAdmin
from ..viewer import Viewer
from .forms import HASHED

#: In the URL of a form, the query of the caller's page that led there.
BACK: Final = "_caller"


class CallerRowAdmin(NulSafeAdmin):
    """An admin of rows about callers: its forms can be filled in by their URL, and lead back to a caller's page."""

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Also take dates, as "ends_at", or "ends_at_0" and "ends_at_1". A wrong one is shown, and not saved."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        for name in (field.name for field in self.opts.fields if isinstance(field, models.DateTimeField)):
            day, _space, hour = initial.pop(name, "").replace("T", " ").partition(" ")
            parts = [initial.pop(f"{name}_0", day), initial.pop(f"{name}_1", hour)]
            initial |= {name: parts} if any(parts) else {}
        return initial

    def response_post_save_add(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        return self._back(request) or super().response_post_save_add(request, obj)

    def response_post_save_change(self, request: HttpRequest, obj: Any) -> HttpResponseRedirect:
        return self._back(request) or super().response_post_save_change(request, obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: Any) -> HttpResponse:
        response = super().response_delete(request, obj_display, obj_id)  # with its message
        return self._back(request) or response

    def _back(self, request: HttpRequest) -> HttpResponseRedirect | None:
        """Return to the caller's page that led here; `None` = none did."""
        query, viewer = request.GET.get(BACK), Viewer(request, self.admin_site)
        url = viewer.url("caller") if query and viewer.sees_callers else ""
        return HttpResponseRedirect(f"{url}?{query}") if url else None


def act_links(report: CallerReport, viewer: Viewer, back: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, URL and text of the forms that this operator may save. back: the query of the caller's page.

    A caller whose own access entry is in force has no link to another one: the page lists that entry.
    """
    caller, today = report.caller, timezone.localdate(datetime.now(UTC))  # without USE_TZ, Django's default is naive
    if caller.is_unknown_row:
        return
    friday = today + timedelta(days=(4 - today.weekday() - 1) % 7 + 1)
    entry = _entry_of(caller)
    if callers_differ(report.rules) and (whom := _assigned_to(caller, entry)):
        whom |= {"ends_at_0": friday.isoformat(), BACK: back}
        if url := viewer.form_url("add", TierAssignment, multiplier="2", **whom):
            yield "more", url, _("Allow more")
            yield "tier", viewer.form_url("add", TierAssignment, **whom), _("Change tier")
    if entry is not None and not any(_is_own(row, caller, entry) for row in report.entries):
        kind, value = entry
        shown = {"user": by_key(value), "api_key": f"{HASHED}{value}"}.get(kind, value)
        until = {"expires_at_0": (today + timedelta(days=1)).isoformat(), BACK: back}
        for action, text in (("allow", _("Allow past all rules")), ("deny", _("Deny every request"))):
            if url := viewer.form_url("add", AccessEntry, action=action, **{kind: shown}, **until):
                yield action, url, text


def _assigned_to(caller: Caller, entry: tuple[str, str] | None) -> dict[str, str]:
    """Return the caller as the field of an assignment's form; empty if nothing can be assigned to it."""
    if caller.kind == "user":
        return {"user": str(caller.user.pk)}
    if caller.kind == "api_key" and caller.api_key:
        return {"api_key": f"{HASHED}{caller.api_key}"}
    if caller.kind == "digest":
        return {"partition": f"{DIGEST_MARK}{entry[1]}"} if entry else {}
    return {"partition": caller.partition(_names(caller)) or ""}


def _entry_of(caller: Caller) -> tuple[str, str] | None:
    """Return kind and value of an entry that names exactly this caller; `None` = there can be none."""
    own = {"user": caller.known.get("user"), "api_key": caller.api_key, "ip": caller.address}
    value = {**own, "customer": caller.known.get("customer")}.get(caller.kind)
    if value is not None:
        return caller.kind, value
    ways = [] if caller.is_everybody or caller.is_nobody or caller.is_unreadable else _ways_of(caller)
    return ("digest", digest_value(ways, caller.digest)) if ways else None


def _is_own(row: AccessEntry, caller: Caller, entry: tuple[str, str]) -> bool:
    """Return whether this entry in force is about exactly this caller. One of several keys has no digest of its own."""
    digests = [] if caller.is_one_key else [caller.digest, *caller.digests_by(_names(caller))]
    return (row.kind, row.value) == entry or (row.kind == "digest" and row.value.rpartition(":")[2] in digests)


def _names(caller: Caller) -> tuple[str, ...]:
    return tuple(caller.known) if caller.kind == "partition" else (caller.kind,)


def _ways_of(caller: Caller) -> list[tuple[str, ...]]:
    """Return by what rules may count this caller. Of a digest it is not known, unless it comes with its rule."""
    if caller.kind != "digest":
        return [_names(caller)]
    split = [rule for rule in cache.latest_rules().rules if rule.partition_by]
    rules = [rule for rule in split if rule.slug == caller.rule] or (
        [] if caller.rule.startswith(inline.PREFIX) else split
    )
    stand_in = [("ip",)] if any(rule.missing_partition == "ip" for rule in rules) else []
    return list(dict.fromkeys([*(rule.partition_by for rule in rules), *stand_in]))


class RuleLink(NamedTuple):
    """A rule's name and the URL of its page; "" = no access. until: when it allows requests again; "" = not shown."""

    name: str
    url: str
    until: str = ""


def explain_url(viewer: Viewer, caller: Caller, rule: RuleRecord | None) -> str:
    """Return the URL of the page that explains a request of this caller. rule: that rejected it, if one led here."""
    values = {
        "user": by_key(caller.known["user"]) if "user" in caller.known else "",
        "ip": caller.address or "",
        "api_key": caller.api_key or "" if caller.open_api_key == caller.api_key else "",  # else it needs the key
    }
    known = {name: value for name, value in values.items() if value}
    digest = caller.digest_for(rule) if rule is not None else None
    if rule is not None and digest is not None:
        known["reference"] = reference_of(rule.slug, digest)
    return viewer.explain_url(known)


def counter_rows(report: CallerReport, viewer: Viewer) -> list[dict[str, Any]]:
    """Return the rows: first the counters that block the caller, its own before shared ones, then the fullest.

    usage_url: of the caller's exact usage in its month; "" = there is none, or no access.
    """
    counters = report.counters
    found = sorted(counters, key=lambda each: (not each.blocked, each.allowed is not False, each.shared, -each.percent))
    month, sees = {"period": "this-month", "day": str(report.tier.anchor_day or 1)}, viewer.may("view_usage_report")
    return [
        {
            "counter": each,
            "rule_url": viewer.rule_url(each.rule.slug),
            "usage_url": viewer.url("usage_callers", rule=each.rule.slug, caller=whole(each.digest), **month)
            if sees and each.rule.exact_usage and tail_of(each.digest)
            else "",
            "counted_by": _counted_by(each),
            "state": counter_in_words(each),
        }
        for each in found
    ]


def _counted_by(counter: Counter) -> str:
    by = split_in_words(counter.rule)
    if counter.stands_in:
        by = _("IP address, because these are missing: %(names)s") % {"names": by}
    return _("by %(by)s") % {"by": by} if counter.rule.partition_by else by


def state_of(blocking: Blocking, viewer: Viewer) -> dict[str, Any]:
    """Return the rules that reject the caller now; with those of shared counters, what is at its limit for all."""
    own, shared, elsewhere = (_named(each, viewer) for each in blocking)
    in_words = map(at_limit_in_words, {each.rule.slug: each.rule for each in blocking.shared}.values())
    return {"own": own, "shared": [*zip(in_words, shared, strict=True)], "elsewhere": elsewhere}


def _named(blocked: Iterable[Counter], viewer: Viewer) -> list[RuleLink]:
    """Return the rules of these counters, each once, and when each allows requests again."""
    by_rule: dict[str, list[Counter]] = {}
    for each in blocked:
        by_rule.setdefault(each.rule.slug, []).append(each)
    return [
        RuleLink(counters[0].rule.name, viewer.rule_url(slug), _until(counters)) for slug, counters in by_rule.items()
    ]


def _until(blocked: Sequence[Counter]) -> str:
    """Return until when the caller is rejected by these; "" = for ever."""
    ends: list[datetime] = [each.blocked_until for each in blocked if each.blocked_until]
    return until_in_words(max(ends)) if len(ends) == len(blocked) else ""


def rows_with_period(rows: Iterable[Any], viewer: Viewer, back: str, *counting: int | None) -> list[dict[str, Any]]:
    """Return the rows of assignments or access entries. counting: the primary keys of those that apply.

    back: the query of the caller's page, to which their forms return.
    """
    return [
        {
            "row": each,
            "url": viewer.row_url(each) and viewer.url(f"{each._meta.model_name}_change", each.pk, **{BACK: back}),
            "end_url": viewer.form_url("delete", type(each), each.pk, **{BACK: back}),
            "period": period_in_words(None, each.expires_at)
            if isinstance(each, AccessEntry)
            else period_in_words(each.starts_at, each.ends_at),
            "times": "" if getattr(each, "multiplier", 1) == 1 else f"{each.multiplier.normalize():f}",
            "counts": each.pk in counting,
        }
        for each in rows
    ]


def bars_of(counters: Iterable[Counter]) -> list[tuple[Counter, str]]:
    """Return the counters that are used, each in words: first those that reject, then the fullest."""
    used = sorted(filter(attrgetter("used"), counters), key=lambda each: (not each.blocked, -each.percent))
    return [(each, counter_in_words(each)) for each in used]


def member_rows(members: Members | None, viewer: Viewer) -> list[dict[str, Any]]:
    """Return the rows of a customer's callers: first those that are blocked, then those with the fullest counters.

    rejecting: the rules that reject it; none if an access entry does.
    """
    found = members.found if members else ()
    named = {who.digest: Name(who.kind, "…" if who.is_secret else who.value) for who, *_ in found}
    names = in_words(viewer.request.user, named)
    rows = [
        {
            "name": names[who.digest].replace(": ", " ", 1),
            "url": viewer.digest_url(who.digest) if who.is_secret else viewer.caller_url(who.kind, who.open_value),
            "is_blocked": member.is_blocked,
            "is_exempt": member.grounds.exempt,
            "rejecting": _named(member.blocking.own, viewer) if member.grounds.access is None else [],
            "bars": bars_of(member.counters),
        }
        for member in found
        for who in [member.caller]
    ]
    return sorted(rows, key=lambda row: (not row["is_blocked"], -sum(each.percent for each, _ in row["bars"][:1])))
