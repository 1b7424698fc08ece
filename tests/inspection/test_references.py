"""From the reference of a rejection to the caller: in any case, out of a whole response, and where nobody is meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command

from django_ratelimiter.identity import digest
from django_ratelimiter.inspection.caller import UnknownCaller, caller_of
from django_ratelimiter.inspection.references import everybody
from django_ratelimiter.inspection.reset import counters_now
from django_ratelimiter.models import Rule

from .test_counters import ask

pytestmark = pytest.mark.django_db


def reference(decision: Any) -> str:
    assert not decision.allowed
    return str(decision.binding.reference)


def test_is_found_in_any_case_and_in_a_whole_response(add_rule: Callable[..., Rule], user: User) -> None:
    add_rule("Export", ["user"], quota=1)
    read = reference(ask(user, 2))
    for typed in (
        read,
        read.upper(),
        read.lower(),
        f' "{read}" ',
        f"Reference: {read}",
        json.dumps({"reference": read}),
    ):
        assert caller_of("reference", typed).digest == digest(f"user:{user.pk}"), typed


def test_of_rules_that_differ_in_case_the_one_that_is_spelled_counts(add_rule: Callable[..., Rule], user: User) -> None:
    add_rule("Export", ["user"], quota=1)
    add_rule("export", ["ip"], quota=1)
    read = reference(ask(user, 2, REMOTE_ADDR="192.0.2.7"))
    slug, _sign, start = read.partition("#")
    other = "export" if slug == "Export" else "Export"
    assert caller_of("reference", f"EXPORT#{start}").rule in ("Export", "export")
    with pytest.raises(UnknownCaller, match="Ask who the caller is"):
        caller_of("reference", f"{other}#{start}")


def test_a_counter_of_all_callers_is_nobodys_own(add_rule: Callable[..., Rule], user: User) -> None:
    add_rule("site", [], quota=1)
    add_rule("export", ["user"], quota=9)
    caller = caller_of("reference", reference(ask(user, 2)).upper())
    assert (caller.is_everybody, caller.digest, caller.rule) == (True, everybody(), "site")
    shown = counters_now(caller).of(caller)
    assert [(each.rule.slug, each.used) for each in shown.counters] == [("site", 1)]
    out = StringIO()
    call_command("ratelimit", "caller", "--reference", f"site#{everybody()[:8]}", stdout=out)
    lines = out.getvalue().splitlines()
    assert lines[0] == (
        f"all callers together ({everybody()}): they share one counter, so the caller cannot be known from it"
    )
    assert lines[1].startswith("site: 1 per hour, sliding window: 1 of 1 used, 0 left")
    assert lines[2].startswith("Rejected by Site (limit now: 1 per hour, sliding window): 1 since ")
    assert ", now: rejected until " in lines[2]


def test_of_a_request_that_lacks_what_a_rule_counts_by_nobody_is_known(add_rule: Callable[..., Rule]) -> None:
    add_rule("org", ["header:X-Org"], missing_partition="deny")
    caller = caller_of("reference", reference(ask()))
    assert (caller.is_nobody, caller.rule) == (True, "org")
    assert counters_now(caller).of(caller).counters == ()
    out = StringIO()
    call_command("ratelimit", "caller", "--reference", reference(ask()), stdout=out)
    first, second = out.getvalue().splitlines()
    assert first == f"requests without what the rule org counts by ({caller.digest}): all of them are rejected"
    assert second.startswith("Rejected by Org (limit now: 5 per hour, sliding window): 2 since ")
    assert second.endswith(f", now: never allowed (org#{caller.digest[:8]})")
