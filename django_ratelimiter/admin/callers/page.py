"""A caller's page: who it is, what it may do and why, all of its counters, and what an operator can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext
from django.views.decorators.debug import sensitive_post_parameters

from ...databases import in_own_transactions
from ...exceptions import EngineUnavailable
from ...inspection.caller import Caller, UnknownCaller, caller_of, named, open_parts
from ...inspection.caller_report import CallerReport, key_names, report_of
from ...inspection.references import name_of
from ...inspection.reset import UNBLOCK, reset
from ...inspection.words import exempt_in_words, rejection_in_words, tier_in_words
from ...models import TierAssignment
from ...rules import inline
from ...rules.formatting import until_in_words
from ...rules.records import RuleRecord
from ...rules.tiers import callers_differ
from ...values.partitions import is_identity
from ...values.references import parse_reference
from ...values.terminal import without_controls
from ..formatting import label_of
from ..pages import show
from ..rejections import rejection_rows
from ..viewer import Viewer
from . import rows
from .rows import act_links


def caller_typed(kind: str, text: str) -> Caller:
    """Return the caller from the search form. Raises UnknownCaller.

    With any selected kind, a reference, or a whole response with one, finds its caller, unless that kind has this text.
    """
    if kind == "reference" or parse_reference(text) is None:
        return caller_of(kind, text)
    try:
        caller = caller_of(kind, text)
    except UnknownCaller:
        return caller_of("reference", text)
    is_response = len(text.split()) > 1 and kind != "partition"
    return caller_of("reference", text) if is_response or caller.is_unknown_row else caller


def known_in(request: HttpRequest) -> list[str]:
    """Return more known values of the caller, as partitions: from the URL, and from the form that asks for them."""
    known = request.GET.getlist("is")
    sent = [request.GET, request.POST] if "know" in request.POST else [request.GET]
    for data in sent:
        known += [f"{key[3:]}={value}" for key, value in data.dict().items() if key.startswith("is:") and value.strip()]
    return known


def open_query(request: HttpRequest) -> tuple[QueryDict, bool]:
    """Return the URL's query with all known values that are not secret, and whether these are all known values."""
    parts, is_all = open_parts(known_in(request))
    query = request.GET.copy()
    for key in [key for key in query if key == "is" or key.startswith("is:")]:
        del query[key]
    for name, value in parts.items():
        query[f"is:{name}"] = value
    return query, is_all


KIND_LABELS: Final = {
    "user": gettext_lazy("user (primary key or login name)"),
    "api_key": gettext_lazy("API key (or its hash)"),
    "ip": gettext_lazy("IP address"),
    "customer": gettext_lazy("customer (primary key)"),
    "partition": gettext_lazy("partition, such as header:X-Org=acme"),
    "digest": gettext_lazy("digest, from a report"),
    "reference": gettext_lazy("reference of a rejection, such as export#eJL8d1F2"),
}


@method_decorator(in_own_transactions)
@method_decorator(sensitive_post_parameters())
def caller_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Show a caller, look one up, or reset counters of one."""
    if request.method == "POST" and not {"reset", "know"} & set(request.POST):
        return _look_up(page_of, request)
    try:
        caller = _caller(request)
        query, is_open = open_query(request)
    except (UnknownCaller, EngineUnavailable) as error:
        return _search(page_of, request, error)
    if caller is None:
        return _search(page_of, request)
    if "reset" in request.POST:
        return _reset(page_of, request, caller)
    typed = request.GET.get("value")
    if typed and (caller.is_secret or (caller.kind == "api_key" and typed != caller.open_value)):
        return _to(page_of, request, caller)
    if (is_open and query != request.GET) or (request.method == "GET" and not is_open):
        return HttpResponseRedirect(_url(page_of, query))
    return _show(page_of, request, caller, may_act=is_open)


def _caller(request: HttpRequest) -> Caller | None:
    """Return the caller in the URL; for an alias, the caller by its name if this operator may see that."""
    known = known_in(request)
    if digest := request.GET.get("digest", ""):
        caller = replace(caller_of("digest", digest), rule=request.GET.get("rule", ""))  # by what it is counted
        return named(caller, request.user, known)
    if "kind" not in request.GET and "value" not in request.GET:
        return None
    return caller_of(request.GET.get("kind", "user"), request.GET.get("value", ""), known)


def _look_up(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Redirect to the page of the entered caller. Values that must not be in a log are not in its URL."""
    try:
        caller = caller_typed(request.POST.get("kind", ""), request.POST.get("value", ""))
    except (UnknownCaller, EngineUnavailable) as error:
        return _search(page_of, request, error)
    return _to(page_of, request, caller)


def _to(page_of: Any, request: HttpRequest, caller: Caller) -> HttpResponse:
    """Redirect to the page of a caller. Its URL contains no key of an API or a session."""
    if caller.is_secret or caller.kind == "digest":
        rule = {"rule": caller.rule} if caller.rule else {}
        return HttpResponseRedirect(_url(page_of, {"digest": caller.digest, **rule}))
    return HttpResponseRedirect(_url(page_of, {"kind": caller.kind, "value": caller.open_value}))


def _search(page_of: Any, request: HttpRequest, error: Exception | None = None) -> HttpResponse:
    problem = str(error or "")
    if isinstance(error, EngineUnavailable):
        problem = _("Redis cannot be reached now, so this caller cannot be found: %s") % error
    kinds = [(kind, label, kind == request.POST.get("kind")) for kind, label in KIND_LABELS.items()]
    return show(page_of, request, "caller_search", _("Find a caller"), {"kinds": kinds, "problem": problem})


def _reset(page_of: Any, request: HttpRequest, caller: Caller) -> HttpResponse:
    """Reset the counter of the pressed button, or all, and show the result of the check."""
    names = list(filter(None, [request.POST["reset"]]))
    try:
        text, took = reset(request.user, caller, names, request.POST.get("reason", ""))
    except EngineUnavailable as error:
        text = _("Redis did not answer, so this may have been done only in part, or not at all: %(why)s")
        messages.error(request, text % {"why": error})
    except ValidationError as error:
        messages.error(request, _("Nothing was changed. %(why)s") % {"why": " ".join(error.messages)})
    else:
        messages.add_message(request, messages.SUCCESS if took else messages.WARNING, text)
    return HttpResponseRedirect(_url(page_of, request.GET))


def _show(page_of: Any, request: HttpRequest, caller: Caller, *, may_act: bool) -> HttpResponse:
    """Show the caller. may_act: False if keys are known that the page's address cannot include."""
    report = report_of(caller)
    viewer, slug = Viewer(request, page_of.admin_site), request.GET.get("rule", "")
    name, access = name_of(request.user, caller.user), report.access
    customer, members = name_of(request.user, caller.customer), rows.member_rows(report.members, viewer)
    for each in report.assignments:
        each.name = customer if each.partition == f"customer:{caller.known.get('customer')}" else ""
    (key, owner), back = key_names(caller, request.user), request.GET.urlencode()
    known = {rule.slug: rule for rule in (*inline.registered(), *report.rules.rules)}
    led_here = [known[slug]] if slug in known else []
    context = {
        "report": report,
        "caller": caller,
        "owner": owner,
        "user_url": viewer.row_url(caller.user) if caller.user is not None else "",
        "user_name": name,
        "customer_name": customer or caller.known.get("customer", ""),
        "customer_url": viewer.row_url(caller.customer)
        if caller.kind == "customer" and caller.customer is not None
        else viewer.caller_url("customer", caller.known.get("customer", "")),
        "members": members,
        "blocked_members": [each for each in members if each["is_blocked"] and report.enforced],
        "explain_url": rows.explain_url(viewer, caller, led_here[0] if led_here else None),
        "named_rules": [rows.RuleLink(rule.name, viewer.rule_url(slug)) for rule in led_here],
        "find_url": _url(page_of, {}),
        "is_freed": bool(report.rejections) and all(each.allowed or each.shadow for each in report.rejections),
        "seen_tier": viewer.tier(report.rejections[0].tier) if report.rejections else "",
        **_rejections(report, viewer, slug, known),
        "tier": tier_in_words(report.tier),
        "exempt": exempt_in_words(report.exempt),
        "access_end": until_in_words(access.expires_at) if access and access.expires_at else "",
        "assignments": rows.rows_with_period(
            report.assignments,
            viewer,
            back,
            *(each.pk for each in (report.tier.assigned, report.tier.multiplied, report.tier.anchored) if each),
        ),
        "entries": rows.rows_with_period(report.entries, viewer, back, access.pk if access else None),
        **_counters(report, viewer),
    }
    if may_act:
        is_one = not (caller.is_everybody or caller.is_nobody)
        context["may_unblock"] = is_one and request.user.has_perm(UNBLOCK)
        context["links"] = list(act_links(report, viewer, back))
        may_assign = bool(viewer.form_url("add", TierAssignment))
        context["is_without_tiers"] = is_one and may_assign and not callers_differ(report.rules)
    own = customer if caller.kind == "customer" else name or key
    title = without_controls(_title(caller, own))
    return show(page_of, request, "caller", title, context)


def _url(page_of: Any, query: Any) -> str:
    text = query.urlencode() if hasattr(query, "urlencode") else urlencode(query)
    page = reverse("admin:django_ratelimiter_caller", current_app=page_of.admin_site.name)
    return f"{page}?{text}" if text else page


def _rejections(report: CallerReport, viewer: Viewer, slug: str, known: Mapping[str, RuleRecord]) -> dict[str, Any]:
    """Return the context of recent rejections. slug: of the rule in the reference or the list that led here."""
    asked = [each for each in report.rejections if each.reference.partition("#")[0] == slug]
    others = [
        {
            "text": rejection_in_words(each, report),
            "explain_url": rows.explain_url(viewer, report.caller, known[each.reference.partition("#")[0]]),
        }
        for each in report.rejections
        if each not in asked
    ]
    return {"asked_rejections": rejection_rows(asked, viewer, report), "rejections": others}


def _counters(report: CallerReport, viewer: Viewer) -> dict[str, Any]:
    missing = [name for each in report.unread if ":" not in each.rule.slug for name in each.missing]
    return {
        "counters": rows.counter_rows(report, viewer),
        "state": rows.state_of(report.blocking, viewer),
        "unread": [
            (rule, viewer.rule_url(rule.slug), [label_of(name) for name in names]) for rule, names in report.unread
        ],
        "unlimited": [(rule, viewer.rule_url(rule.slug)) for rule in report.unlimited],
        "missing": [(name, label_of(name)) for name in dict.fromkeys(missing) if is_identity(name)],
    }


def _title(caller: Caller, name: str) -> str:
    if caller.kind == "user":
        return _("User %(key)s, %(name)s") % {"key": caller.value, "name": name} if name else capfirst(str(caller))
    if caller.is_everybody:
        return pgettext("caller", "All callers together")
    if caller.is_nobody:
        return _("Requests without what the rule counts by")
    if caller.is_unreadable:
        return _("Requests whose body cannot be read")
    labels = {"ip": _("Address %s"), "api_key": _("API key %s"), "partition": "%s", "digest": _("Caller %s")}
    labels["customer"] = _("Customer %s")
    return labels[caller.kind] % (name if name and caller.kind in ("api_key", "customer") else caller.value)
