"""`manage.py ratelimit explain`."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.test import Client

from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import AccessEntry, Tier, TierAssignment
from django_ratelimiter.rules.stored import storage
from tests.making import MakeRule, manage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls("tests.inspection.urls")]

run = partial(manage, "explain")


def test_lines_say_what_is_answered_and_why(make_rule: MakeRule, people: None, client: Client) -> None:
    make_rule("user", quota=1, partition_by=["user"])
    make_rule("posts", methods=["POST"])
    make_rule("shadow", quota=1, mode="shadow", partition_by=["ip"])
    text = run("GET", "/hello/", "--user", "ann", "--ip", "127.0.0.1")
    assert text.startswith("GET /hello/, view hello, route hello/\nAllowed.\n")
    assert "posts: Method: it is for POST, and this is GET." in text
    client.get("/hello/")
    assert "1 of 1 used, 0 left; would be blocked until " in run("GET", "/hello/", "--ip", "127.0.0.1")


def test_a_curl_command_will_do(make_rule: MakeRule) -> None:
    make_rule("key", partition_by=["header:X-Org"])
    found = json.loads(run("--curl", "curl -X POST -H 'X-Org: acme' https://example.org/hello/", "--json"))
    assert (found["request"]["method"], found["identities"]) == ("POST", {"header:X-Org": "acme"})


@pytest.mark.parametrize(
    "line", ["GET", "GET /hello/ --user nobody", "GET http://[broken", "GET / --identity x", "--curl 'wget x'"]
)
def test_what_cannot_be_asked_is_an_error(line: str) -> None:
    with pytest.raises(CommandError):
        run(*shlex.split(line))


def test_the_reference_of_a_rejection_marks_its_counter(make_rule: MakeRule, people: None, client: Client) -> None:
    make_rule("hello", quota=1, partition_by=["ip"], path="/hello/", path_kind="exact", methods=["GET"])
    make_rule("another", partition_by=["ip"], limit={"window_seconds": 60})  # which counts by the same digest
    rejected = [client.get("/hello/") for _ in range(2)][1]
    reference = rejected["X-RateLimit-Reference"]
    mine = run("--reference", reference, "--ip", "127.0.0.1")
    assert mine.splitlines()[:2] == ["GET /hello/, view hello, route hello/", "Rejected with status 429 by hello."]
    assert "! One of the counters below is the one that rejected." in mine
    assert "    1 per day, token bucket (rejected before): 1 of 1 used" in mine
    assert mine.count("(rejected before)") == 1
    whole = f"HTTP/1.1 429 Too Many Requests\nX-RateLimit-Reference: {reference.lower()}\n\n{rejected.content.decode()}"
    assert run("--reference", whole, "--ip", "127.0.0.1") == mine
    other = run("GET", "/hello/", "--reference", reference, "--ip", "192.0.2.1")
    assert "! None of the counters below is the one that rejected: it was another caller" in other
    assert "(rejected before)" not in other


@pytest.mark.parametrize("counted_by", ["ip", "header:X-Org", "user"])
def test_a_reference_alone_asks_for_the_caller(
    make_rule: MakeRule, people: None, client: Client, settings: Any, counted_by: str
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    Tier.objects.create(slug="free", name="Free", default_for="anonymous")
    make_rule("all", quota=1, partition_by=[counted_by], path_kind="exact", path="/hello/")
    client.force_login(User.objects.get(username="ann"))
    reference = [client.get("/hello/", headers={"X-Org": "a"}) for _ in range(2)][1]["X-RateLimit-Reference"]
    lines = run("--reference", reference).splitlines()
    assert f"! Not known here, so treated as missing: {counted_by}. Enter the values." in lines
    assert lines[1].startswith(f"Not known without {counted_by}, which these rules count by: all.")
    [tier] = [each for each in lines if each.startswith("Tier: ")]
    assert tier.startswith("Tier: not known, as only the digest of this caller is known")


@pytest.mark.parametrize("kind", ["user", "ip", "api_key"])
def test_a_reference_brings_the_caller_whose_name_is_known(
    make_rule: MakeRule, people: None, client: Client, kind: str
) -> None:
    make_rule("all", quota=1, partition_by=[kind], path_kind="exact", path="/hello/")
    ann, free = User.objects.get(username="ann"), Tier.objects.create(slug="free", name="Free")
    TierAssignment.objects.create(
        tier=free, **{"api_key_hash": hash_api_key("sk")} if kind == "api_key" else {"user": ann}
    )
    if kind == "user":
        client.force_login(ann)
    sent = [client.get("/hello/", headers={"X-Api-Key": "sk"} if kind == "api_key" else {}) for _ in range(2)]
    found = run("--reference", sent[1]["X-RateLimit-Reference"])
    assert ("Tier: Free, assigned" in found) == (kind != "ip")
    named = {"user": "ann", "ip": "127.0.0.1", "api_key": "sk"}
    option = f"--{kind.replace('_', '-')}"
    assert found == run("--reference", sent[1]["X-RateLimit-Reference"], option, named[kind])
    assert "(rejected before)" in found
    other = run("--reference", sent[1]["X-RateLimit-Reference"], "--user", "bob")
    assert "(rejected before)" not in other, "who is named wins"


def test_the_reference_of_a_caller_who_is_denied_now(make_rule: MakeRule, client: Client) -> None:
    make_rule("hello", quota=1, partition_by=["ip"], path="/hello/", path_kind="exact", methods=["GET"])
    reference = [client.get("/hello/") for _ in range(2)][1]["X-RateLimit-Reference"]
    entry = AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.0/30", reason="scraper")
    storage.forget_entries()
    denied = run("--reference", reference, "--ip", "127.0.0.1")
    assert "! An access entry denies this caller: every request is rejected. (127.0.0.0/30: scraper)" in denied
    assert "of the counters below" not in denied
    entry.delete()
    storage.forget_entries()
    elsewhere = run("GET", "/nowhere/", "--reference", reference, "--ip", "127.0.0.1")
    assert "! None of the counters below is the one that rejected: it was another caller or path" in elsewhere


def test_the_reference_of_a_limit_in_code_has_no_counter_here(client: Client, db: None) -> None:
    reference = [client.get("/coded/") for _ in range(6)][-1]["X-RateLimit-Reference"]
    text = run("GET", "/coded/", "--reference", reference, "--ip", "127.0.0.1")
    assert "it was another caller or path or a limit in code" in text


def test_json_says_whether_the_counter_of_a_reference_is_there(make_rule: MakeRule, client: Client) -> None:
    make_rule("all", quota=1)
    reference = [client.get("/hello/") for _ in range(2)][1]["X-RateLimit-Reference"]
    found = json.loads(run("GET", "/hello/", "--reference", reference, "--json"))
    assert found["logged"] == {"reference": reference, "found": True, "problem": ""}
    assert json.loads(run("GET", "/hello/", "--json"))["logged"] is None


def test_what_is_no_reference_is_an_error(make_rule: MakeRule) -> None:
    make_rule("all", quota=1)
    with pytest.raises(CommandError, match="reference: This is not the reference of a rejection"):
        run("GET", "/hello/", "--reference", "all")
    with pytest.raises(CommandError, match="path:"):  # the rule is for any path
        run("--reference", "all#12345678")
