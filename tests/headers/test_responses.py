"""The response to a rejected request: its status, body and fields, from decisions made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.test import RequestFactory, override_settings
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.decision import Decision
from django_ratelimiter.headers import rejection_response
from django_ratelimiter.headers.responses import PROBLEM_JSON

from .test_fields import ALLOWED, DENIED, NEVER, decision, limit, results


def get(accept: str | None = None) -> HttpRequest:
    return RequestFactory().get("/", headers={"Accept": accept} if accept is not None else None)


def with_pages(pages: dict[str, str], *others: str, **settings: Any) -> override_settings:
    """Settings in which templates are these pages, then those of the other loaders."""
    loaders = [("django.template.loaders.locmem.Loader", pages), *others]
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": {"loaders": loaders}}
    return override_settings(TEMPLATES=[engine], **settings)


JSON, HTML, TEXT = PROBLEM_JSON, "text/html; charset=utf-8", "text/plain; charset=utf-8"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, JSON),
        ("*/*", JSON),
        ("", JSON),
        ("application/json", JSON),
        ("application/json, text/plain, */*", JSON),
        (BROWSER, HTML),
        ("application/xhtml+xml", HTML),
        ("text/html;q=0.5, application/json;q=0.4", HTML),
        ("text/html;q=0.4, application/json", JSON),
        ("text/plain", TEXT),
        ("text/html; q*=bogus''x", JSON),
        (BROWSER + ",text/html;level=1" * 1000, JSON),
    ],
)
def test_the_body_is_what_the_client_prefers(accept: str | None, content_type: str) -> None:
    response = rejection_response(get(accept), decision(results(DENIED)))
    assert response.status_code == 429
    assert response["Content-Type"] == content_type


@given(st.text(alphabet=st.sampled_from("texhmlapcionjs/*;,=q*0.5'\"% \xff\\"), max_size=60))
def test_any_accept_field_has_an_answer(accept: str) -> None:
    assert rejection_response(get(accept), decision(results(DENIED))).status_code == 429


def test_problem_details_of_a_rejection() -> None:
    response = rejection_response(get(), decision(results(DENIED), results(ALLOWED, slug="login")))
    assert json.loads(response.content) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Too many requests",
        "status": 429,
        "detail": "You have sent more requests than allowed. Please try again in 8 seconds.",
        "violated-policies": ["api"],
        "reference": "api#key",
    }
    assert response["Retry-After"] == "8"
    assert response["RateLimit"]
    assert response["Cache-Control"] == "no-store"
    assert response["Vary"] == "Accept"


def test_violated_policies_bear_the_names_of_the_fields() -> None:
    rejected = decision(results(DENIED, DENIED, limits=[limit("1.000000"), limit("60.000000")]))
    response = rejection_response(get(), rejected)
    names = json.loads(response.content)["violated-policies"]
    assert names == ["api", "api-60"]
    assert all(f'"{name}";' in response["RateLimit"] for name in names)


def test_problem_details_of_an_outage() -> None:
    closed = decision(results(None, failure_policy="closed", message="Slow down."), degraded=True)
    response = rejection_response(get(), closed)
    assert response.status_code == 503
    assert response["Retry-After"] == "1"
    assert "RateLimit" not in response
    problem = json.loads(response.content)
    assert problem["type"].endswith("#temporary-reduced-capacity")
    assert problem["status"] == 503
    assert problem["violated-policies"] == ["api"]
    assert "Slow down." not in problem["detail"]


@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/plain"])
def test_the_rules_own_message_is_shown(accept: str) -> None:
    quiet = results((False, 0, 1.0, 1.0), slug="quiet", message="Not this one.")
    rejected = decision(quiet, results(DENIED, message="Ask <sales> for more."))
    content = rejection_response(get(accept), rejected).content.decode()
    assert ("Please try again in 8 seconds." in content) is (accept != "application/json")
    assert ("Ask &lt;sales&gt; for more." if accept == "text/html" else "Ask <sales> for more.") in content
    assert "Not this one." not in content


@pytest.mark.parametrize(
    ("wait", "says"),
    [
        (0.2, "in 1 second."),
        (119.0, "in 119 seconds."),
        (121.0, "in 3 minutes."),
        (7201.0, "in 3 hours."),
        (200_000.0, "in 3 days."),
        (None, "Trying again will not help."),
    ],
)
def test_a_wait_is_told_in_the_unit_of_people(wait: float | None, says: str) -> None:
    content = rejection_response(get("text/plain"), decision(results((False, 0, wait, 1.0)))).content.decode()
    assert content.startswith("Too many requests\n")
    assert says in content


def test_the_page_needs_no_inline_style_or_script() -> None:
    content = rejection_response(get("text/html"), decision(results(DENIED))).content.decode()
    assert '<link rel="stylesheet" href="/static/django_ratelimiter/rejected.css">' in content
    assert '<meta name="color-scheme" content="light dark">' in content
    assert '<html lang="en-us" dir="ltr">' in content
    assert "<style" not in content
    assert "<script" not in content
    assert " style=" not in content


MANIFEST = {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"}}


@pytest.mark.parametrize(
    "without",
    [
        {"STATIC_URL": None},
        {
            "STATIC_URL": None,
            "INSTALLED_APPS": ["django_ratelimiter", "django.contrib.auth", "django.contrib.contenttypes"],
        },
        {"STORAGES": MANIFEST, "STATIC_ROOT": "/nowhere"},
        {"STORAGES": MANIFEST},
    ],
    ids=["no URL", "no app", "no manifest", "no root"],
)
def test_the_page_stands_without_its_stylesheet(without: dict[str, Any]) -> None:
    with override_settings(**without):
        content = rejection_response(get("text/html"), decision(results(DENIED))).content.decode()
    assert "<h1>Too many requests</h1>" in content
    assert "stylesheet" not in content


@pytest.mark.parametrize(
    ("name", "entries"), [("django_ratelimiter/rejected.html", {}), ("own/page.html", {"RESPONSE": "own/page.html"})]
)
def test_the_page_can_be_replaced(name: str, entries: dict[str, str]) -> None:
    """By a template of the same name, or of one's own."""
    with with_pages({name: "{{ status }} {{ title }} {{ retry_after }} {{ reason }} {{ when }}"}, RATELIMITER=entries):
        page = rejection_response(get("text/html"), decision(results(DENIED)))
        assert rejection_response(get(), decision(results(DENIED)))["Content-Type"] == JSON
    says = b"429 Too many requests 8 You have sent more requests than allowed. Please try again in 8 seconds."
    assert (page.status_code, page["Retry-After"], page.content) == (429, "8", says)


def teapot(request: HttpRequest, decision: Decision) -> HttpResponse:
    names = ", ".join(str(result.rule) for result in decision.rejected_by)
    return HttpResponse(f"{request.path} {names}", status=418)


async def async_teapot(request: HttpRequest, decision: Decision) -> HttpResponse:
    return teapot(request, decision)


@pytest.mark.parametrize("name", ["teapot", "async_teapot"])
def test_a_callable_makes_the_response(name: str) -> None:
    with override_settings(RATELIMITER={"RESPONSE": f"tests.headers.test_responses.{name}"}):
        response = rejection_response(get("text/html"), decision(results(DENIED)))
    assert (response.status_code, response.content) == (418, b"/ api")
    assert response["RateLimit"]
    assert response["Retry-After"] == "8"
    assert response["Cache-Control"] == "no-store"


def kind(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse("slow down", status=int(request.GET["status"]))


@pytest.mark.parametrize(("own", "sent"), [(200, 429), (204, 429), (304, 429), (302, 302), (418, 418)])
def test_a_rejection_is_never_a_success(own: int, sent: int) -> None:
    with override_settings(RATELIMITER={"RESPONSE": "tests.headers.test_responses.kind"}):
        response = rejection_response(RequestFactory().get("/", {"status": own}), decision(results(DENIED)))
    assert (response.status_code, response.content, response["Retry-After"]) == (sent, b"slow down", "8")


def fails(request: HttpRequest, decision: Decision) -> HttpResponse:
    raise PermissionDenied("on purpose")


def forgets(request: HttpRequest, decision: Decision) -> None:
    pass


def renders_later(request: HttpRequest, decision: Decision) -> HttpResponse:
    return TemplateResponse(request, "no/such.html", status=429)


@pytest.mark.parametrize("name", ["fails", "forgets", "renders_later", "is_not_there"])
def test_a_callable_that_fails_leaves_the_usual_response(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(RATELIMITER={"RESPONSE": f"tests.headers.test_responses.{name}"}):
        response = rejection_response(get("text/html"), decision(results(DENIED)))
    assert (response.status_code, response["Retry-After"]) == (429, "8")
    assert b"<h1>Too many requests</h1>" in response.content
    [record] = caplog.records
    assert (record.levelname, name in record.getMessage(), record.exc_info) == ("ERROR", True, None)


@pytest.mark.parametrize("page", [{}, {"own/page.html": "{% nonsense %}"}, {"own/page.html": "{% include 'none' %}"}])
def test_a_template_that_fails_leaves_our_page(page: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    ours = "django.template.loaders.app_directories.Loader"
    with with_pages(page, ours, RATELIMITER={"RESPONSE": "own/page.html"}):
        response = rejection_response(get("text/html"), decision(results(DENIED)))
    assert response.status_code == 429
    assert b"<h1>Too many requests</h1>" in response.content
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("ERROR", None)]


def test_without_any_template_a_page_becomes_text(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(TEMPLATES=[]):
        response = rejection_response(get("text/html"), decision(results(DENIED)))
    assert (response.status_code, response["Content-Type"], response["Retry-After"]) == (429, TEXT, "8")
    assert b"in 8 seconds" in response.content
    assert "cannot be rendered" in caplog.text


@pytest.mark.parametrize(
    ("request_", "answer", "link"),
    [
        (RequestFactory().get("/a/?b=1&c=<"), DENIED, "/a/?b=1&amp;c=%3C"),
        (RequestFactory().get("/", PATH_INFO="//evil.example/"), DENIED, "/%2Fevil.example/"),
        (RequestFactory().post("/a/"), DENIED, None),
        (RequestFactory().get("/a/"), NEVER, None),
    ],
)
def test_the_page_offers_to_try_again_where_that_may_help(request_: HttpRequest, answer: Any, link: str | None) -> None:
    request_.META["HTTP_ACCEPT"] = "text/html"
    content = rejection_response(request_, decision(results(answer))).content.decode()
    assert (f'<a href="{link}">Try again</a>' in content) if link else ("<a " not in content)


def test_the_page_names_the_language_and_its_direction() -> None:
    with translation.override("ar"):
        content = rejection_response(get("text/html"), decision(results(DENIED))).content.decode()
    assert '<html lang="ar" dir="rtl">' in content


def test_head_has_the_same_fields() -> None:
    rejected = decision(results(DENIED))
    head = rejection_response(RequestFactory().head("/"), rejected)
    assert dict(head.headers) == dict(rejection_response(get(), rejected).headers)
