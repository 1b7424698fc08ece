"""The page that explains the decision on a request: a form, or a pasted command, and the result of each rule."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from ..conf import is_secret
from ..inspection.curl import with_curl
from ..inspection.explanation import CounterState, Explanation, RuleExplanation
from ..inspection.logline import LoggedRefusal, parse_log_line
from ..inspection.question import Question, QuestionError
from ..inspection.readers import CALLER_FIELDS, CallerHidden, explain_to, may_name_callers
from ..inspection.references import as_in_force, known_rules
from ..inspection.request import gateway_views
from ..inspection.users import by_key
from ..inspection.words import (
    bypass_in_words,
    counter_in_words,
    door_in_words,
    doubts_of,
    headline_of,
    reason_in_words,
    rows_in_words,
    shadow_in_words,
    tier_in_words,
)
from ..models import Rule
from ..models.validation import METHODS
from ..rules.records import RuleRecord
from ..values.bounds import MAX_TEXT
from .identities import label_of
from .logged import caller_url, logged_context, prefilled, rule_url

ADDRESS: Final = "django_ratelimiter_explain"
#: Fields that a URL may contain. Others are secrets, and URLs are logged. A "reference" replaces a pasted one.
_IN_URLS: Final = ("method", "path", "view", "scope", "user", "ip", "status", "gateway", "api_key")


class QuestionForm(forms.Form):
    """The form of a question. pasted: a curl command, or a log line.

    digest, logged_rules: from a line that was pasted before: its caller, and the rules that rejected the request.
    """

    use_required_attribute = False

    pasted = forms.CharField(
        label=gettext_lazy("Paste a curl command, a line of the log, or the reference of a rejection"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.Textarea({"rows": 3, "spellcheck": "false", "autocomplete": "off"}),
    )
    method = forms.CharField(label=gettext_lazy("Method"), required=False, initial="GET", max_length=20)
    path = forms.CharField(label=gettext_lazy("Path or URL"), required=False, max_length=4_000)
    view = forms.CharField(label=gettext_lazy("or view name"), required=False, max_length=200)
    scope = forms.CharField(label=gettext_lazy("Scope"), required=False, max_length=100)
    user = forms.CharField(label=gettext_lazy("User (login name or ID)"), required=False, max_length=200)
    api_key = forms.CharField(
        label=capfirst(gettext_lazy("API key")),
        required=False,
        max_length=300,
        widget=forms.PasswordInput({"autocomplete": "off"}),
    )
    session = forms.CharField(
        label=gettext_lazy("Session key"),
        required=False,
        max_length=100,
        widget=forms.PasswordInput({"autocomplete": "off"}),
    )
    ip = forms.GenericIPAddressField(label=capfirst(gettext_lazy("IP address")), required=False)
    status = forms.IntegerField(
        label=gettext_lazy("Status of the view's response"), required=False, min_value=100, max_value=599, initial=200
    )
    headers = forms.CharField(
        label=gettext_lazy("Header fields, one “Name: value” per line"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.Textarea({"rows": 3, "spellcheck": "false", "autocomplete": "off"}),
    )
    identities = forms.CharField(
        label=gettext_lazy("Values to count by, one “name=value” per line"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.Textarea({"rows": 2, "spellcheck": "false", "placeholder": "field:email=ann@example.org"}),
    )
    body = forms.CharField(
        label=gettext_lazy("Body"),
        required=False,
        max_length=MAX_TEXT,
        widget=forms.Textarea({"rows": 2}),
        strip=False,
    )
    gateway = forms.ChoiceField(label=gettext_lazy("Asked by"), required=False)
    digest = forms.CharField(required=False, max_length=100, widget=forms.HiddenInput)
    logged_rules = forms.CharField(required=False, max_length=4_000, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, asks_callers: bool, initial: Any = None) -> None:
        super().__init__(data, initial=initial, label_suffix="")
        self.fields["method"].widget.attrs["list"] = "ratelimiter-methods"
        routes = gateway_views()
        if routes:
            asked = [(route, _("a gateway, at %(route)s") % {"route": route}) for route in routes]
            self.fields["gateway"].choices = [("", _("no gateway: a request to this site")), *asked]  # type: ignore[attr-defined]
        else:
            del self.fields["gateway"]
        if not asks_callers:
            for name in CALLER_FIELDS:
                del self.fields[name]

    def question(self) -> Question:
        """Return the question. Raises QuestionError."""
        data = self.cleaned_data
        question = Question(
            headers=_pairs(data["headers"], ":", "headers"),
            identities=dict(_pairs(data["identities"], "=", "identities")),
            status=data["status"] or 200,
            method=data["method"] or "GET",
            **{name: data.get(name, "") for name in ("path", "view", "scope", "ip", "body", "gateway", *CALLER_FIELDS)},
        )
        return with_curl(data["pasted"], question)

    def logged(self) -> LoggedRefusal | None:
        """Return the rejection that was pasted before; `None` if there was none, or if its line names no caller."""
        rules, digest = self.cleaned_data["logged_rules"].split(), self.cleaned_data["digest"]
        return LoggedRefusal(tuple(rules), digest=digest) if digest else None


class ExplainPage(admin.ModelAdmin):
    """An admin with the page. It needs the permission to view rules; counters and tiers need their own permissions."""

    def get_urls(self) -> list[URLPattern]:
        page = path("explain/", self.admin_site.admin_view(self.explain_view), name=ADDRESS)
        return [page, *super().get_urls()]

    @method_decorator(sensitive_post_parameters())
    def explain_view(self, request: HttpRequest) -> HttpResponse:
        """Show the form and the result. Nothing is charged, and nothing changes."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        asks_callers = may_name_callers(request.user)
        data = request.POST if request.method == "POST" else _from_url(request)
        is_asked = request.method == "POST" or any(data.get(name) for name in ("path", "view", "pasted"))
        form = QuestionForm(data if is_asked else None, asks_callers=asks_callers, initial=data)
        context: dict[str, Any] = {}
        if form.is_bound and form.is_valid():
            logged = parse_log_line(form.cleaned_data["pasted"], known_rules())
            if logged is not None:
                logged = as_in_force(logged)
                form = QuestionForm(initial=prefilled(logged, form.cleaned_data), asks_callers=asks_callers)
                context = logged_context(request, logged)
            else:
                context = self._answer(request, form)
        context |= {
            **self.admin_site.each_context(request),
            "title": _("Explain a request"),
            "opts": self.opts,
            "form": form,
            "methods": METHODS,
            "asks_callers": asks_callers,
        }
        return TemplateResponse(request, "admin/django_ratelimiter/explain.html", context)

    def _answer(self, request: HttpRequest, form: QuestionForm) -> dict[str, Any]:
        try:
            explanation = explain_to(request.user, form.question())
        except CallerHidden as error:
            form.add_error("identities", str(error))
            return {}
        except QuestionError as error:
            named = "pasted" if error.field == "curl" else error.field
            form.add_error(named if named in form.fields else None, str(error))
            return {}
        return answer_context(request, explanation, form.logged())


def answer_context(request: HttpRequest, explanation: Explanation, logged: LoggedRefusal | None) -> dict[str, Any]:
    """Return the page's context for an explanation that was made for this user."""
    sees_counters = "counters" not in explanation.hidden
    keys = dict(Rule.objects.values_list("slug", "pk"))
    applying = [_applying(request, each, explanation, keys, logged) for each in explanation.applying]
    others = [
        {
            "name": each.rule.name or each.rule.slug,
            "mode": Rule.Mode(each.rule.mode).label,
            "url": rule_url(request, each.rule.slug, keys),
            "why": reason_in_words(each, explanation),
        }
        for each in explanation.rules
        if not each.applies
    ]
    user = explanation.identities.get("user")
    return {
        "explanation": explanation,
        "answer": headline_of(explanation) if sees_counters else "",
        "bypass": bypass_in_words(explanation),
        "doubts": doubts_of(explanation),
        "tier": tier_in_words(explanation.tier),
        "sees_counters": sees_counters,
        "counted_as": _counted_as(explanation),
        "applying": applying,
        "others": others,
        "left_out": explanation.left_out,
        "caller_url": caller_url(request, kind="user", value=by_key(user)) if user else "",
        "is_found": any(counter["is_logged"] for rule in applying for counter in rule["counters"]),
        "is_about_logged": logged is not None,
    }


def _applying(
    request: HttpRequest,
    each: RuleExplanation,
    explanation: Explanation,
    keys: dict[str, int],
    logged: LoggedRefusal | None,
) -> dict[str, Any]:
    """Return the page's context for a rule that applies."""
    sees_counters, slug = "counters" not in explanation.hidden, each.rule.slug
    return {
        "name": each.rule.name or slug,
        "mode": each.rule.mode,
        "mode_label": Rule.Mode(each.rule.mode).label,
        "url": rule_url(request, slug, keys),
        "door": door_in_words(each.door),
        "rows": "" if "tiers" in explanation.hidden else rows_in_words(each, explanation.tier),
        "shadow": shadow_in_words(each) if sees_counters else "",
        "edge": _edge(each),
        "counters": [_counter(request, each.rule, counter, logged) for counter in each.counters],
    }


def _edge(each: RuleExplanation) -> str:
    if not each.rejects:
        return ""
    return "ratelimiter-bad" if each.rule.mode == "enforce" else "ratelimiter-warning"


def _counted_as(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the caller's values that the rules here count by, without credentials."""
    return [
        (label_of(name), _("missing") if value is None else "…" if is_secret(name) else value)
        for name, value in explanation.identities.items()
    ]


def _counter(
    request: HttpRequest, rule: RuleRecord, counter: CounterState, logged: LoggedRefusal | None
) -> dict[str, Any]:
    share = 100 * (counter.used or 0) / counter.quota
    return {
        "words": counter.words,
        "state": counter_in_words(counter, rule.mode),
        "key": counter.key,
        "is_known": counter.used is not None,
        "width": f"{min(share, 100):.1f}%",
        "level": "ratelimiter-full" if share >= 100 else "ratelimiter-nearly" if share >= 80 else "",
        "is_logged": logged is not None and logged.is_of(rule.slug, counter.digest),
        "url": caller_url(request, digest=counter.digest, rule=rule.slug),
    }


def _from_url(request: HttpRequest) -> dict[str, str]:
    """Return the initial data of the form; from the URL only what it may contain."""
    given = {name: request.GET[name] for name in _IN_URLS if name in request.GET}
    if len(given.get("api_key", "")) != 64:  # a key, not its hash; it is in the logs now
        given.pop("api_key", None)
    if "reference" in request.GET:
        given["pasted"] = request.GET["reference"]
    return {"method": "GET", "status": "200", **given}


def _pairs(text: str, sign: str, field: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for line in filter(str.strip, text.splitlines()):
        name, found, value = line.partition(sign)
        if sign == ":" and name.strip().startswith(":"):  # HTTP/2 pseudo-header fields, as browsers show them
            continue
        if sign == "=" and not found:
            raise QuestionError(field, _("%(text)r has no “%(sign)s”.") % {"text": line, "sign": sign})
        pairs.append((name.strip(), value.strip()))
    return tuple(pairs)
