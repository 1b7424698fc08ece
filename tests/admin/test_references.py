"""From the reference in a rejected response to the caller: by the search, the page that explains, shell and API."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_ratelimiter.callers.caller import UnknownCaller, caller_of
from django_ratelimiter.identity import digest
from django_ratelimiter.models import TopPartition
from django_ratelimiter.usage.times import Granularity, floor, now, stored
from tests.doors.conftest import MakeRule, make_rule, people

__all__ = ["make_rule", "people"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.explain.urls")]

ALL = ("view_rule", "view_usage_report", "view_tierassignment", "unblock_caller")


@pytest.fixture
def rejected(make_rule: MakeRule, people: None, caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """What a rejected client was sent, and what was logged."""
    make_rule("export", quota=1, partition_by=["header:X-Org"], path_kind="exact", path="/hello/")
    client = Client(headers={"X-Org": "acme"})
    client.get("/hello/")
    response = client.get("/hello/")
    page = client.get("/hello/", headers={"Accept": "text/html"}).content.decode()
    text = client.get("/hello/", headers={"Accept": "text/plain"}).content.decode()
    [record, *_] = [each for each in caplog.records if "was refused" in each.message]
    return {"problem": response.json(), "field": response["X-RateLimit-Reference"], "page": page, "text": text,
            "logged": record.reference}  # fmt: skip


def test_all_of_them_name_it_alike(rejected: dict[str, Any], operator: Callable[..., Client]) -> None:
    reference = f"export#{digest('header:X-Org:acme')[:8]}"
    assert rejected["problem"]["reference"] == rejected["field"] == rejected["logged"] == reference
    assert f"<code>{reference}</code>" in rejected["page"]
    assert rejected["text"].endswith(f"Reference: {reference}\n")
    client = operator(*ALL)
    assert reference in client.get(reverse("admin:django_ratelimiter_refusals")).content.decode()
    caller = client.get(reverse("admin:django_ratelimiter_caller"), {"digest": digest("header:X-Org:acme")})
    assert reference in caller.content.decode()


def test_an_allowed_response_has_none(make_rule: MakeRule) -> None:
    make_rule("export")
    assert "X-RateLimit-Reference" not in Client().get("/hello/")


def test_search_and_the_callers_page_find_the_caller(rejected: dict[str, Any], operator: Callable[..., Client]) -> None:
    client, found = operator(*ALL), digest("header:X-Org:acme")
    typed = rejected["field"].upper().replace("EXPORT", "export")
    response = client.post(reverse("admin:django_ratelimiter_search"), {"q": typed})
    assert (response.status_code, f"digest={found}" in response.url) == (302, True)
    response = client.post(reverse("admin:django_ratelimiter_caller"), {"kind": "reference", "value": typed})
    assert response.url.endswith(f"?digest={found}")
    out = io.StringIO()
    call_command("ratelimit", "caller", "--reference", typed, "--json", stdout=out)
    summary = json.loads(out.getvalue())
    assert (summary["caller"]["digest"], summary["blocked"]) == (found, None)
    assert summary["rejections"][0]["reference"] == rejected["field"]


@pytest.mark.parametrize("pasted", ["field", "problem"])
def test_it_is_pasted_into_the_page_that_explains(
    rejected: dict[str, Any], operator: Callable[..., Client], pasted: str
) -> None:
    client, address = operator(*ALL), reverse("admin:django_ratelimiter_explain")
    given = rejected[pasted] if pasted == "field" else json.dumps(rejected[pasted])
    prefilled = client.post(address, {"method": "GET", "pasted": given})
    form = prefilled.context["form"]
    assert (form.initial["path"], form.initial["digest"]) == ("/hello/", rejected["field"].partition("#")[2])
    [url] = prefilled.context["logged_urls"]
    assert url.endswith(f"digest={digest('header:X-Org:acme')}&rule=export")
    linked = client.get(address, {"reference": rejected["field"]})
    assert linked.context["form"].initial["digest"] == form.initial["digest"]
    for org, found in (("acme", True), ("other", False)):
        sent = {"path": "/hello/", "headers": f"X-Org: {org}", "digest": form.initial["digest"], "method": "GET"}
        assert client.post(address, sent).context["digest_found"] is found


def test_one_that_is_known_no_more_leads_to_the_page_that_explains(
    rejected: dict[str, Any], operator: Callable[..., Client]
) -> None:
    with pytest.raises(UnknownCaller, match="Ask who the caller is"):
        caller_of("reference", "export#AAAAAAAA")
    response = operator(*ALL).post(reverse("admin:django_ratelimiter_search"), {"q": "export#AAAAAAAA"})
    assert "explain/?reference=export%23AAAAAAAA" in response.url


def test_top_partitions_know_older_ones(make_rule: MakeRule) -> None:
    found = digest("user:42")
    hour = stored(floor(now(), Granularity.HOUR, now().tzinfo))
    TopPartition.objects.create(rule_slug="export", granularity="hour", start=hour, partition=found, denied=7)
    assert caller_of("reference", f"export#{found[:8]}").digest == found
    with pytest.raises(UnknownCaller):
        caller_of("reference", f"other#{found[:8]}")


def test_nobody_without_a_permission_finds_a_caller(rejected: dict[str, Any], operator: Callable[..., Client]) -> None:
    client = operator("view_usage_report", "view_rule")
    response = client.post(reverse("admin:django_ratelimiter_search"), {"q": rejected["field"]})
    assert "explain/?reference=" in response.url
    shown = client.post(reverse("admin:django_ratelimiter_explain"), {"pasted": rejected["field"]})
    assert digest("header:X-Org:acme") not in shown.content.decode()
