"""The response to a rejected request."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.utils.http import escape_leading_slashes
from django.utils.module_loading import import_string
from django.utils.translation import get_language, npgettext
from django.utils.translation import gettext as _

from ..conf import django_setting, settings
from ..decision import Decision, Rejection
from ..exceptions import raised_at
from ..identity import message_for
from ..logs import logger
from .fields import write_fields
from .syntax import shown_limit

PROBLEM_JSON: Final = "application/problem+json"
TEMPLATE: Final = "django_ratelimiter/rejected.html"

_PROBLEM_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
#: Longer Accept fields are not parsed for a rejection: 1 KB takes Django 5 ms.
_MAX_ACCEPT: Final = 500
#: In order of preference, if the caller has none.
_BODIES: Final = {
    PROBLEM_JSON: "json",
    "application/json": "json",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/plain": "text",
}

#: A wait in seconds, minutes, hours or days: the unit and the number.
Wait = tuple[str, int]


class RejectionText(NamedTuple):
    """The text of a rejection, for people.

    reason: the rejecting rule's own message, if it has one. when: to retry. detail: both in one text, or only the
    message, if it contains the time.
    """

    title: str
    reason: str
    when: str
    detail: str


class RejectionBodies(NamedTuple):
    """A rejection as text, as a problem document (RFC 9457), and as plain text.

    problem: without its last brace, before which the reference comes. label: of the reference. The reference itself is
    not included: these are cached, and it depends on the caller.
    """

    words: RejectionText
    problem: bytes
    text: bytes
    label: str


def rejection_response(request: HttpRequest, decision: Decision) -> HttpResponseBase:
    """Return the response to a rejected request: 429, or 503 if a failure policy `closed` rejected it, or 403 if it is
    denied.

    It is made by the function or template that RESPONSE names; else it is problem JSON, HTML or plain text, by the
    Accept field. If RESPONSE fails, the error is logged and the usual response is returned. A rejection never becomes
    a 500, nor a success, which Django's cache would store.
    """
    own = settings.RESPONSE
    response = None if own is None or own.endswith(".html") else _own_response(own, request, decision)
    if response is None:
        response = _usual_response(request, decision)
    if response.status_code < 300 or response.status_code == 304:
        response.status_code = decision.rejection.status
    write_fields(request, response, decision)
    response._ratelimit_shows = decision  # type: ignore[attr-defined]  # only here: caches pickle other responses
    return response


def add_reference(response: HttpResponseBase, decision: Decision) -> None:
    """Add the "reference" of the rejection to the body that DRF will render, if it has the form {"detail": …}.

    A body with other fields is the project's own, and does not change.
    """
    data = getattr(response, "data", None)
    if response.status_code != 429 or getattr(response, "is_rendered", True):
        return
    if isinstance(data, dict) and data.keys() == {"detail"} and (reference := decision.rejection.reference):
        response.data = {**data, "reference": reference}  # type: ignore[attr-defined]


def may_wait(request: HttpRequest) -> bool:
    """Return whether making the response to a rejection may run the project's code, such as context processors."""
    return settings.RESPONSE is not None or _preferred_body(request) == "html"


def _own_response(path: str, request: HttpRequest, decision: Decision) -> HttpResponseBase | None:
    """Return the response of the project's own callable; `None` if it fails or returns `None`."""
    try:
        make = import_string(path)
        response = (async_to_sync(make) if iscoroutinefunction(make) else make)(request, decision)
        if hasattr(response, "render"):
            response.render()  # so that an error in a template is raised here
    except Exception as error:  # in the project's own code
        logger.error("RATELIMITER['RESPONSE'], %s, failed; the usual response is sent: %s", path, raised_at(error))
        return None
    if isinstance(response, HttpResponseBase):
        return response
    logger.error("RATELIMITER['RESPONSE'], %s, must return a response, not %s.", path, type(response).__name__)
    return None


def _usual_response(request: HttpRequest, decision: Decision) -> HttpResponse:
    rejection, body = decision.rejection, _preferred_body(request)
    words, problem, text, label = _bodies_of(rejection)
    reference = rejection.reference
    page = _page(request, _context(request, rejection, words)) if body == "html" else None
    if page is not None:
        response = HttpResponse(page)
    elif body == "json":
        # It contains only characters that JSON does not escape.
        end = b', "reference": "%b"}' % reference.encode() if reference else b"}"
        response = HttpResponse(problem + end, content_type=PROBLEM_JSON)
    else:
        named = f"{label}: {reference}\n".encode() if reference else b""
        response = HttpResponse(text + named, content_type="text/plain; charset=utf-8")
    response.status_code = rejection.status
    response.headers._store["vary"] = "Vary", "Accept"  # as `write_fields`
    return response


def _page(request: HttpRequest, context: dict[str, object]) -> str | None:
    """Return the page from RESPONSE's template, else from our own; `None` if both fail."""
    own = settings.RESPONSE
    usual = TEMPLATE if apps.is_installed("django_ratelimiter") else None  # else Django does not search this package
    for template in filter(None, (own if own and own.endswith(".html") else None, usual)):
        try:
            return render_to_string(template, context, request)
        except Exception as error:  # in the project's templates and context processors
            logger.error("The page of a rejection, %s, cannot be rendered: %s", template, raised_at(error))
    return None


def words_of(decision: Decision) -> RejectionText:
    """Return the texts of a rejection, in the active language."""
    return _bodies_of(decision.rejection).words


def _bodies_of(rejection: Rejection) -> RejectionBodies:
    wait = None if rejection.seconds is None else _wait_of(rejection.seconds)
    message = message_for(rejection.binding.rule, rejection.digest) if rejection.binding else ""
    for owner in rejection.by:
        owner.name = owner.name or shown_limit(owner).name
    policies = tuple([owner.name for owner in rejection.by if owner.name])
    return _bodies(rejection.status, message, policies, wait, get_language())


@lru_cache(maxsize=1_000)
def _bodies(
    status: int, message: str, policies: tuple[str, ...], wait: Wait | None, _language: str | None
) -> RejectionBodies:
    """Return the texts of a rejection. policies: the names of the limits that reject. wait: `None` = for ever."""
    words = _rejection_text(status, message, wait)
    problem: dict[str, object] = {"title": words.title, "status": status, "detail": words.detail}
    if status == 403:
        problem = {"type": "about:blank", **problem}
    else:
        kind = "temporary-reduced-capacity" if status == 503 else "quota-exceeded"
        problem = {"type": _PROBLEM_TYPES + kind, **problem, "violated-policies": list(dict.fromkeys(policies))}
    text = f"{words.title}\n{words.reason}\n{words.when}\n"
    return RejectionBodies(words, json.dumps(problem)[:-1].encode(), text.encode(), _("Reference"))


def _rejection_text(status: int, message: str, wait: Wait | None) -> RejectionText:
    if status == 403:
        title, message = _("Forbidden"), ""
        reason, when = _("You do not have access to this service."), _("Trying again will not help.")
    elif status == 503:
        title, message = _("Temporarily unavailable"), ""
        reason = _("The service cannot check request limits at the moment.")
        when = _("Please try again shortly.")
    else:
        title = _("Too many requests")
        if wait is None:
            reason = message or _("This request is not allowed by the limits that apply to it.")
            when = _("Trying again will not help.")
        else:
            reason = message or _("You have sent more requests than allowed.")
            when = _("Please try again in %(wait)s.") % {"wait": _shown_wait(wait)}
    return RejectionText(title, reason, when, message or f"{reason} {when}")


def _context(request: HttpRequest, rejection: Rejection, words: RejectionText) -> dict[str, object]:
    """Return the page's context. `again`: the address to retry, `None` if a retry does not help."""
    helps = request.method == "GET" and rejection.seconds is not None
    return {
        "status": rejection.status,
        **words._asdict(),
        "retry_after": rejection.seconds,
        "reference": rejection.reference,
        "again": escape_leading_slashes(request.get_full_path()) if helps else None,  # "//" would begin a host name
        "stylesheet": stylesheet(),
    }


def _preferred_body(request: HttpRequest) -> str:
    """Return json, html or text; json if the Accept field is missing, invalid, or matches none."""
    accept: str = request.META.get("HTTP_ACCEPT", "*/*")
    return _body_for(accept) if len(accept) <= _MAX_ACCEPT else "json"


@lru_cache(maxsize=500)
def _body_for(accept: str) -> str:
    """Return the body type that an Accept field prefers. Cached: few values are common, and parsing is slow."""
    request = HttpRequest()
    request.META["HTTP_ACCEPT"] = accept
    try:
        preferred = request.get_preferred_type(list(_BODIES))
    except (ValueError, LookupError):  # Django's parser fails on some malformed parameters
        return "json"
    return _BODIES[preferred or PROBLEM_JSON]


def stylesheet() -> str | None:
    """Return the URL of the stylesheet of such pages; `None` if the project does not serve it: they work without."""
    if not django_setting("STATIC_URL"):
        return None
    try:
        return static("django_ratelimiter/rejected.css")
    except (ValueError, ImproperlyConfigured):  # such as a manifest that collectstatic has not written yet
        return None


def _wait_of(seconds: int) -> Wait:
    """Return a wait in the unit that people would use, rounded up."""
    if seconds < 120:
        return "second", seconds
    if seconds < 2 * 3600:
        return "minute", -(-seconds // 60)
    if seconds < 2 * 86400:
        return "hour", -(-seconds // 3600)
    return "day", -(-seconds // 86400)


def _shown_wait(wait: Wait) -> str:
    unit, count = wait
    texts = {
        "second": npgettext("after in", "%(count)d second", "%(count)d seconds", count),
        "minute": npgettext("after in", "%(count)d minute", "%(count)d minutes", count),
        "hour": npgettext("after in", "%(count)d hour", "%(count)d hours", count),
        "day": npgettext("after in", "%(count)d day", "%(count)d days", count),
    }
    return texts[unit] % {"count": count}
