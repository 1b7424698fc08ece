"""The page that explains a request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from tests.making import MakeRule

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]

ALL = ("view_rule", "view_usage_report", "view_tierassignment", "view_accessentry")


def page(client: Client, **given: Any) -> Any:
    return client.post(reverse("admin:django_ratelimiter_explain"), {"method": "GET", "ip": "203.0.113.7", **given})


def test_it_says_what_is_answered_and_why(operator: Callable[..., Client], make_rule: MakeRule, people: None) -> None:
    make_rule("ip", quota=1, partition_by=["ip"])
    make_rule("posts", methods=["POST"])
    Client().get("/hello/", REMOTE_ADDR="203.0.113.7")
    text = page(operator(*ALL), path="/hello/", user="ann").content.decode()
    assert "Rejected with status 429 by ip." in text
    assert "1 of 1 used, 0 left; blocked until" in text
    assert "Method: it is for POST, and this is GET." in text


def test_its_address_prefills_it_and_asks_at_once(operator: Callable[..., Client], make_rule: MakeRule) -> None:
    make_rule("ip", partition_by=["ip"])
    client, address = operator(*ALL), reverse("admin:django_ratelimiter_explain")
    asked = client.get(address, {"path": "/hello/", "ip": "203.0.113.7"})
    assert asked.context["answer"] == "Allowed."
    prefilled = client.get(address, {"ip": "203.0.113.7"})
    assert "explanation" not in prefilled.context
    assert 'value="203.0.113.7"' in prefilled.content.decode()


def test_secrets_are_not_taken_from_an_address(operator: Callable[..., Client], make_rule: MakeRule) -> None:
    make_rule("key", partition_by=["api_key"])
    TierAssignment.objects.create(
        tier=Tier.objects.create(slug="pro", name="Pro", rank=1), api_key_hash=hash_api_key("s")
    )
    client, address = operator(*ALL), reverse("admin:django_ratelimiter_explain")
    by_raw = client.get(address, {"path": "/hello/", "api_key": "s"})
    assert by_raw.context["explanation"].matched == ()
    by_hash = client.get(address, {"path": "/hello/", "api_key": hash_api_key("s")})
    assert [each.rule.slug for each in by_hash.context["explanation"].matched] == ["key"]
    for text in ("s", f"value:{hash_api_key('s')}"):
        found = page(client, path="/hello/", api_key=text).context["explanation"].matched
        assert [each.rule.slug for each in found] == ["key"]


def test_a_curl_command_and_a_line_of_the_log_are_pasted(
    operator: Callable[..., Client], make_rule: MakeRule, caplog: pytest.LogCaptureFixture
) -> None:
    make_rule("org", quota=1, partition_by=["header:X-Org"], path_kind="exact", path="/hello/")
    client = operator(*ALL)
    command = "curl 'https://example.org/hello/' \\\n  -H 'X-Org: acme'"
    assert page(client, pasted=command).context["answer"] == "Allowed."
    for _ in range(2):
        Client().get("/hello/", headers={"X-Org": "acme"})
    record = next(each for each in caplog.records if "was rejected" in each.message)
    line = json.dumps({"message": record.message, "rule": record.rule, "reference": record.reference})
    make_rule("another", quota=9, partition_by=["header:X-Org"])  # its counters of the same caller bear the same digest
    form = page(client, pasted=line, ip="").context["form"]
    assert form.initial["path"] == "/hello/"
    kept = {"reference": form.initial["reference"]}
    for org, marked in (("acme", ["org"]), ("other", [])):
        shown = page(client, path="/hello/", identities=f"header:X-Org={org}", **kept)
        assert shown.context["explanation"].logged.found is bool(marked)
        assert _marked(shown) == marked


@pytest.mark.parametrize(
    ("codenames", "status"),
    [((), 403), (ALL[1:], 403), (("view_rule",), 200), (("change_rule",), 200)],
)
def test_page_needs_one_permission_and_shows_tier_counters_and_entries(
    operator: Callable[..., Client], make_rule: MakeRule, people: None, codenames: tuple[str, ...], status: int
) -> None:
    pro = Tier.objects.create(slug="pro", name="Gold", rank=1)
    TierAssignment.objects.create(tier=pro, user=User.objects.get(username="ann"))
    AccessEntry.objects.create(action="deny", kind="ip", value="203.0.113.8", reason="scraper")
    make_rule("all", tier=pro)
    client = operator(*codenames)
    assert client.get(reverse("admin:django_ratelimiter_explain")).status_code == status
    answers = [page(client, path="/hello/", user="ann"), page(client, path="/hello/", ip="203.0.113.8")]
    shows = [text in answer.content.decode() for answer, text in zip(answers, ("Gold", "scraper"), strict=True)]
    assert ([answer.status_code for answer in answers], shows) == ([status] * 2, [status == 200] * 2)
    assert ("0 of " in answers[0].content.decode()) == (status == 200)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"path": ""}, "path"),
        ({"path": "/hello/", "user": "nobody"}, "user"),
        ({"path": "/hello/", "identities": "nothing"}, "identities"),
        ({"pasted": "curl -X POST"}, "pasted"),
        ({"view": "nothing"}, "view"),
    ],
)
def test_errors_stand_at_their_fields(operator: Callable[..., Client], given: dict[str, str], field: str) -> None:
    response = page(operator(*ALL), **given)
    assert (response.status_code, list(response.context["form"].errors)) == (200, [field])


def _marked(shown: Any) -> list[str]:
    """Return the rules whose counters are said to be the one in the log."""
    applying = shown.context["explanation"].matched
    return [each.rule.slug for each in applying if any(counter.logged for counter in each.counters)]
