"""The page of recent rejections by rules and access entries. It updates by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from ..engine.usage.rejections import KEPT, RECORDED_EXACTLY, RECORDED_ONE_IN, Rejection
from ..exceptions import EngineUnavailable
from ..inspection.caller import by_key
from ..models import AccessEntry, Rule, Tier
from ..rules import cache, inline
from ..rules.formatting import limit_in_words, units
from ..rules.records import RuleRecord
from ..usage.live import names as caller_names
from ..usage.live.denials import DeniedCaller, recently_denied
from ..usage.live.names import Name
from ..usage.live.rejections import recent
from ..values.references import reference_of
from .formatting import breakable
from .identities import label_of
from .names import in_words, revealed_to

ADDRESS: Final = "django_ratelimiter_rejections"
PERMISSION: Final = "django_ratelimiter.view_usage_report"

#: Each of these permissions opens a caller's page.
CALLER_PERMISSIONS: Final = ("view_tierassignment", "unblock_caller", "grant_caller")

#: Maximum number of rows.
MAX_ROWS: Final = 100

#: The value instead of a rule that selects denials by access entries. No slug has such a character.
BY_ACCESS: Final = "@access"

#: Seconds between two updates.
UPDATE_SECONDS: Final = 5


class RejectionRow(NamedTuple):
    """A row of the page. limit: as text; reach: the view that rejected last, else what the rule applies to.

    caller: the digest; empty = callers that were not counted separately. reference: in the responses. name: of the
    digest's caller, empty if it is not known or the reader lacks the permission. number: of the time, to find new rows.
    is_access: an access entry denies, not a rule; reason: of the entry; entry_url: of its form.
    """

    at: datetime
    at_text: str
    since: datetime
    since_text: str
    times: str
    is_estimate: bool
    rule: str
    tier: str
    limit: str
    reach: str
    caller: str
    reference: str
    name: str
    caller_url: str
    explain_url: str
    shadow: bool
    number: int
    is_access: bool = False
    reason: str = ""
    entry_url: str = ""


class RejectionsPage(admin.ModelAdmin):
    """An admin with the page, which needs the same permission as reports."""

    def rejections_urls(self) -> list[URLPattern]:
        """Return the URL of the page."""
        return [path("rejections/", self.admin_site.admin_view(self.rejections_view), name=ADDRESS)]

    def rejections_view(self, request: HttpRequest) -> HttpResponse:
        """Show the page, or only the rows if `part` is in the query. 403 without the permission to view reports."""
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        rule = request.GET.get("rule") or None
        records = _records()
        context: dict[str, Any] = {"rows": [], "rule": rule, "most": MAX_ROWS, "by_access": BY_ACCESS}
        try:
            rows = [] if rule == BY_ACCESS else list(_rows(request, recent(MAX_ROWS, rule), records))
            rows += _denied_rows(request, recently_denied(MAX_ROWS)) if rule in (None, BY_ACCESS) else ()
            context["rows"] = sorted(rows, key=lambda row: row.number, reverse=True)[:MAX_ROWS]
        except EngineUnavailable:
            context["unavailable"] = True
        if "part" in request.GET:
            return TemplateResponse(request, "admin/django_ratelimiter/rejections_rows.html", context)
        context |= self.admin_site.each_context(request) | {
            "title": _("Recent rejections"),
            "opts": self.opts,
            "rules": sorted(records),
            "every": UPDATE_SECONDS,
            "query": urlencode({"rule": rule}) if rule else "",
            "exactly": RECORDED_EXACTLY,
            "one_in": RECORDED_ONE_IN,
            "kept": KEPT,
            "access_url": _access_url(request),
        }
        return TemplateResponse(request, "admin/django_ratelimiter/rejections.html", context)


def _access_url(request: HttpRequest) -> str:
    """Return the URL of the list of access entries that deny; empty without the permission."""
    url = _url(request, "django_ratelimiter_accessentry_changelist", {"action__exact": "deny"})
    return url if _sees_entries(request) else ""


def _sees_entries(request: HttpRequest) -> bool:
    return any(request.user.has_perm(f"django_ratelimiter.{act}_accessentry") for act in ("view", "change"))


def _records() -> Mapping[str, RuleRecord]:
    """Return the current rules and those in code, by slug."""
    return {rule.slug: rule for rule in (*inline.registered(), *cache.current_rules().rules)}


def _rows(
    request: HttpRequest, rejections: Iterable[Rejection], records: Mapping[str, RuleRecord]
) -> Iterable[RejectionRow]:
    names = dict(Rule.objects.values_list("slug", "name"))
    tiers = dict(Tier.objects.values_list("slug", "name"))
    opens_callers = _opens_callers(request)
    rejections = list(rejections)
    seen = caller_names.views((each.rule, each.partition) for each in rejections)
    may_explain = _may_explain(request)
    known = revealed_to(request.user, [each.partition for each in rejections])
    callers = in_words(known)
    for each in rejections:
        record = records.get(each.rule)
        query = {"digest": each.partition, "rule": each.rule}
        yield RejectionRow(
            at=_moment(each.at_us),
            at_text=_clock(each.at_us),
            since=_moment(each.since_us),
            since_text=_clock(each.since_us),
            times=units(each.times),
            is_estimate=each.is_estimate,
            rule=names.get(each.rule) or each.rule,
            tier=tiers.get(each.tier, each.tier),
            limit=_limit_of(each, record) if record else "",
            reach=breakable(seen.get((each.rule, each.partition)) or (_reach_of(record) if record else "")),
            caller=each.partition,
            reference=reference_of(each.rule, each.partition),
            name=callers.get(each.partition, ""),
            caller_url=_url(request, "django_ratelimiter_caller", query) if opens_callers else "",
            explain_url=_url(
                request,
                "django_ratelimiter_explain",
                _asked(each, record, seen.get((each.rule, each.partition)), known.get(each.partition)),
            )
            if record and may_explain
            else "",
            shadow=each.shadow,
            number=each.at_us,
        )


def _denied_rows(request: HttpRequest, found: list[DeniedCaller]) -> Iterable[RejectionRow]:
    """Yield a row for each denied caller. Names need the permission to view access entries."""
    sees_entries = _sees_entries(request)
    entries = (
        AccessEntry.objects.in_bulk({each.entry for each in found if each.entry}) if sees_entries and found else {}
    )
    opens_callers = _opens_callers(request)
    may_explain = _may_explain(request)
    known = revealed_to(request.user, [each.digest for each in found])
    callers = in_words(known)
    for each in found:
        entry, name = entries.get(each.entry or 0), known.get(each.digest)
        at_us, since_us = (int(moment.timestamp() * 1_000_000) for moment in (each.at, each.since))
        asked = {"view": each.view, **(_asked_of(name) if name else {})}
        yield RejectionRow(
            at=each.at,
            at_text=_clock(at_us),
            since=each.since,
            since_text=_clock(since_us),
            times=units(each.times),
            is_estimate=False,
            rule=entry.subject if entry else label_of(each.kind),
            tier="",
            limit="",
            reach=breakable(each.view),
            caller=each.digest,
            reference="",
            name=callers.get(each.digest, ""),
            caller_url=_url(request, "django_ratelimiter_caller", {"digest": each.digest})
            if opens_callers and each.digest
            else "",
            explain_url=_url(request, "django_ratelimiter_explain", asked)
            if each.view and name and may_explain
            else "",
            shadow=False,
            number=at_us,
            is_access=True,
            reason=entry.reason if entry else "",
            entry_url=_form_url(request, entry) if entry else "",
        )


def _opens_callers(request: HttpRequest) -> bool:
    return any(request.user.has_perm(f"django_ratelimiter.{each}") for each in CALLER_PERMISSIONS)


def _may_explain(request: HttpRequest) -> bool:
    return any(request.user.has_perm(f"django_ratelimiter.{act}_rule") for act in ("view", "change"))


def _moment(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC)


def _clock(at_us: int) -> str:
    """Return the time of day, with the day of the week unless it is today."""
    moment = timezone.localtime(_moment(at_us))
    today = timezone.localdate(datetime.now(UTC))  # without USE_TZ, Django's default is naive
    return date_format(moment, "H:i:s" if moment.date() == today else "D H:i:s")


def _limit_of(rejection: Rejection, record: RuleRecord) -> str:
    """Return the limit that rejects, as text; empty if the rule does not have it any more."""
    limits = record.limits[rejection.tier] if rejection.tier in record.limits else record.limits.get(None, ())
    found = [limit for limit in limits if rejection.counter.endswith(limit.limit.tag)]
    return limit_in_words(found[0]) if found else ""


def _reach_of(record: RuleRecord) -> str:
    """Return what a rule applies to, as a short text."""
    parts = [*sorted(record.methods), record.view_name, record.path, record.scope]
    return " ".join(filter(None, parts)) or _("all requests")


def _asked(rejection: Rejection, record: RuleRecord, view: str | None, name: Name | None) -> dict[str, str]:
    """Return the data for a question to the page that explains, as far as it is known.

    If the caller is not known, that page asks for the caller first: the result would be for another one.
    """
    path = record.path if record.path_kind in ("exact", "prefix") and not view else ""
    asked = {"method": min(record.methods, default=""), "view": view or record.view_name, "path": path}
    asked["scope"] = record.scope
    known = _asked_of(name) if name else {}
    if not known and record.partition_by:
        known = {"reference": reference_of(rejection.rule, rejection.partition)}
    asked |= known
    return {name: value for name, value in asked.items() if value}


def _asked_of(name: Name) -> dict[str, str]:
    """Return the data for a question about this caller."""
    if name.kind not in ("user", "ip", "api_key"):
        return {}
    return {name.kind: by_key(name.value) if name.kind == "user" else name.value}


def rejections_url(request: HttpRequest, rule: str | None = None) -> str:
    """Return the URL of the page; empty if this site has none. rule: of this rule only."""
    return _url(request, ADDRESS, {"rule": rule} if rule else {})


def _form_url(request: HttpRequest, entry: AccessEntry) -> str:
    return _url(request, "django_ratelimiter_accessentry_change", {}, entry.pk)


def _url(request: HttpRequest, name: str, query: Mapping[str, str], *args: object) -> str:
    """Return the URL of a page of the same site; empty if it has none."""
    try:
        url = reverse(f"admin:{name}", args=args, current_app=getattr(request, "current_app", None))
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(query)}" if query else url
