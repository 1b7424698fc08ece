"""The page that explains the decision on a request: a form, or a pasted command, and the result of each rule."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from ..inspection.caller import by_key
from ..inspection.explanation import Explanation, Matched, explain, headline_of, notes_of
from ..inspection.question import MAX_LENGTHS, Question, QuestionError, asked, is_curl, names_caller, pairs
from ..inspection.references import Rejected
from ..inspection.words import counter_in_words, tier_in_words
from ..models import Rule
from ..models.validation import METHODS
from ..values.bounds import MAX_TEXT
from ..values.terminal import without_controls
from .formatting import label_of
from .pages import show
from .viewer import Viewer

#: Fields that a URL may contain. Others are secrets, and URLs are logged.
_IN_URLS: Final = ("method", "path", "view", "scope", "user", "ip", "api_key", "reference")


#: Attributes of fields whose values browsers must not keep.
_NOT_KEPT: Final = {"autocomplete": "off"}


def _short(name: str, label: Any, **options: Any) -> forms.CharField:
    """Return the field of a short text of a question."""
    return forms.CharField(label=label, required=False, max_length=MAX_LENGTHS[name], **options)


def _long(label: Any, rows: int, **attributes: Any) -> forms.CharField:
    """Return a field of several lines."""
    widget = forms.Textarea({"rows": rows, "spellcheck": "false", **_NOT_KEPT, **attributes})
    return forms.CharField(label=label, required=False, max_length=MAX_TEXT, widget=widget)


class QuestionForm(forms.Form):
    """The form of a question. pasted: a curl command, or a text with a reference. reference: that was pasted before."""

    use_required_attribute = False

    pasted: forms.CharField = _long(gettext_lazy("Paste a curl command, or the reference of a rejection"), 3)
    method: forms.CharField = _short("method", gettext_lazy("Method"), initial="GET")
    path: forms.CharField = _short("path", gettext_lazy("Path or URL"))
    view: forms.CharField = _short("view", gettext_lazy("or view name"))
    scope: forms.CharField = _short("scope", gettext_lazy("Scope"))
    user: forms.CharField = _short("user", gettext_lazy("User (login name or ID)"))
    api_key = _short("api_key", capfirst(gettext_lazy("API key")), widget=forms.PasswordInput(_NOT_KEPT))
    ip = forms.GenericIPAddressField(label=capfirst(gettext_lazy("IP address")), required=False)
    identities: forms.CharField = _long(
        gettext_lazy("Values to count by, one “name=value” per line"), 2, placeholder="header:X-Org=acme"
    )
    reference: forms.CharField = forms.CharField(required=False, max_length=MAX_TEXT, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, initial: Any = None) -> None:
        super().__init__(data, initial=initial, label_suffix="")
        self.fields["method"].widget.attrs["list"] = "ratelimiter-methods"

    def question(self) -> Question:
        """Return the question. Raises QuestionError."""
        data = self.cleaned_data
        return Question(
            identities=dict(pairs(data["identities"].splitlines(), "=", "identities")),
            method=data["method"] or "GET",
            **{name: data[name] for name in ("path", "view", "scope", "ip", "user", "api_key")},
        )

    def asked(self, reader: Any) -> tuple[Question, Rejected | None]:
        """Return the question, with what was pasted, and the rejection if there is one. Raises QuestionError."""
        pasted = self.cleaned_data["pasted"]
        if is_curl(pasted):
            return asked(self.question(), pasted, "", reader)
        return asked(self.question(), "", pasted or self.cleaned_data["reference"], reader)


@method_decorator(sensitive_post_parameters())
def explain_view(page_of: Any, request: HttpRequest) -> HttpResponse:
    """Show the form and the result. Nothing is charged, and nothing changes."""
    data = request.POST if request.method == "POST" else _from_url(request)
    is_asked = request.method == "POST" or any(data.get(name) for name in ("path", "view", "reference"))
    form = QuestionForm(data if is_asked else None, initial=data)
    context: dict[str, Any] = {}
    if form.is_bound and form.is_valid():
        form, context = _answer(request, form)
    context |= {"form": form, "methods": METHODS}
    return show(page_of, request, "explain", _("Explain a request"), context)


def _answer(request: HttpRequest, form: QuestionForm) -> tuple[QuestionForm, dict[str, Any]]:
    """Return form and context; for a new rejection, the form with what is known of request and caller."""
    logged = None
    try:
        question, logged = form.asked(request.user)
        if logged is not None and (request.method == "GET" or form.cleaned_data["pasted"]):
            known = {name: value for name, value in form.cleaned_data.items() if value and name != "pasted"}
            known |= {name: getattr(question, name) for name in (*MAX_LENGTHS, "ip")}
            form = QuestionForm(initial=known | {"reference": str(logged.reference)})
            if not (names_caller(question) or logged.is_shared):
                return form, logged_context(request, logged)
        return form, answer_context(request, explain(question, logged))
    except QuestionError as error:
        if logged is not None and not form.is_bound:  # of the request that the rule matches
            return form, logged_context(request, logged)
        name = "pasted" if error.field in ("curl", "reference") else error.field
        form.add_error(name if name in form.fields else None, str(error))
        return form, {}


def logged_context(request: HttpRequest, logged: Rejected) -> dict[str, Any]:
    """Return the page's context for a reference: the possible callers and the rule."""
    viewer, slug = Viewer(request), logged.reference.rule
    urls = [viewer.digest_url(caller, rule=slug) for caller in logged.callers]
    return {"logged": logged, "logged_rule_url": viewer.rule_url(slug), "logged_urls": list(filter(None, urls))}


def answer_context(request: HttpRequest, explanation: Explanation) -> dict[str, Any]:
    """Return the page's context for an explanation."""
    viewer = Viewer(request)
    user = explanation.identities.get("user")
    return {
        "explanation": explanation,
        "answer": headline_of(explanation),
        "notes": notes_of(explanation),
        "tier": tier_in_words(explanation.tier),
        "counted_as": [
            (label_of(name), _("missing") if value is None else without_controls(value))
            for name, value in explanation.identities.items()
        ],
        "matched": [_card(viewer, each) for each in explanation.matched],
        "unmatched": [
            (each, Rule.Mode(each.rule.mode).label, viewer.rule_url(each.rule.slug)) for each in explanation.unmatched
        ],
        "caller_url": viewer.caller_url("user", by_key(user)) if user else "",
    }


def _card(viewer: Viewer, each: Matched) -> dict[str, Any]:
    """Return the page's context for a rule that applies."""
    edge = "ratelimiter-bad" if each.rule.mode == "enforce" else "ratelimiter-warning"
    slug = each.rule.slug
    return {
        "rule": each.rule,
        "mode": Rule.Mode(each.rule.mode).label,
        "url": viewer.rule_url(slug),
        "edge": edge if each.rejects else "",
        "counters": [
            (counter, counter_in_words(counter), viewer.digest_url(counter.digest, rule=slug))
            for counter in each.counters
        ],
    }


def _from_url(request: HttpRequest) -> dict[str, str]:
    """Return the initial data of the form; from the URL only what it may contain."""
    given = {name: request.GET[name] for name in _IN_URLS if name in request.GET}
    if len(given.get("api_key", "")) != 64:  # a key, not its hash; it is in the logs now
        given.pop("api_key", None)
    return {"method": "GET", **given}
