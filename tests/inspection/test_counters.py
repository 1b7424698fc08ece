"""The counters of a caller: those of a real request, read in one call, and found by the reference of a rejection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser, User

from django_ratelimiter import limiter
from django_ratelimiter.engine import Charge, Limit, MemoryEngine, Verdict
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.inspection.caller import Caller, UnknownCaller, caller_of
from django_ratelimiter.inspection.caller_report import report_of
from django_ratelimiter.inspection.counters import Counter, Counters, read
from django_ratelimiter.inspection.references import everybody
from django_ratelimiter.inspection.reset import counters_now
from django_ratelimiter.models import AccessEntry, Rule, Tier
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.records import LimitRecord, RuleRecord

from ..making import manage, request_of

pytestmark = pytest.mark.django_db


def ask(user: Any = None, times: int = 1, **meta: str) -> Any:
    """Send requests through the limiter."""
    for _ in range(times):
        decision = limiter.check(request_of(user or AnonymousUser(), **meta))
    return decision


def counter(caller: Caller, rule: str) -> Counter:
    [found] = [each for each in counters_now(caller).counters if each.rule.slug == rule]
    return found


def test_of_a_user_with_what_is_used_left_and_blocked(add_rule: Callable[..., Rule], user: User) -> None:
    add_rule("export", ["user"], quota=3, algorithm="fixed_window")
    add_rule("search", ["user"], quota=10, mode="shadow")
    ask(user, 3)
    caller = caller_of("user", str(user.pk))
    export, search = counter(caller, "export"), counter(caller, "search")
    assert (export.used, export.left, export.capacity, export.blocked) == (3, 0, 3, True)
    assert (search.used, search.left, search.blocked) == (3, 7, False)
    decision = ask(user)
    [rejected] = [result.verdict for result in decision.results if result.rule.slug == "export"]
    assert export.verdict is not None
    until = export.verdict.at_us + round(export.verdict.retry_after * 1e6)
    assert until == rejected.at_us + round(rejected.retry_after * 1e6)
    other = counters_now(caller_of("user", str(User.objects.create_user("bob").pk)))
    assert [each.blocked for each in other.counters] == [False, False]


def test_are_those_that_a_request_charges(add_rule: Callable[..., Rule], user: User, free: Tier) -> None:
    add_rule("both", ["user", "ip"])
    add_rule("org", ["header:X-Org"])
    add_rule("all", [])
    add_rule("address", ["ip"])
    decision = ask(user, REMOTE_ADDR="192.0.2.7", HTTP_X_ORG="acme|100%")
    charged = {result.verdict.charge.key for result in decision.results}
    caller = caller_of("partition", f"user:{user.pk}|ip:192.0.2.7|header:X-Org=acme%7C100%25")
    assert {each.charge.key for each in counters_now(caller).counters} == charged
    assert [each.used for each in counters_now(caller).counters] == [1, 1, 1, 1]


def test_an_address_has_the_counters_of_the_networks_around_it(add_rule: Callable[..., Rule]) -> None:
    add_rule("site", ["ip/48"])
    ask(REMOTE_ADDR="2001:db8:1:2::7")
    ask(REMOTE_ADDR="2001:db8:1:3::7")
    assert counter(caller_of("ip", "2001:db8:1:4::7"), "site").used == 2
    assert counter(caller_of("partition", "ip/48:2001:db8:1::/48"), "site").used == 2


def test_a_field_is_spelled_as_in_requests() -> None:
    assert caller_of("partition", "field:email= Ann@Example.org").known == {"field:email": "ann@example.org"}


def test_an_address_stands_for_what_is_missing(add_rule: Callable[..., Rule]) -> None:
    add_rule("export", ["user"], missing_partition="ip")
    ask(REMOTE_ADDR="2001:db8::7")
    found = counter(caller_of("ip", "2001:db8::99"), "export")  # of the same network of 64 bits
    assert (found.used, found.stands_in) == (1, True)


def test_what_cannot_be_known_is_said_and_can_be_added(add_rule: Callable[..., Rule], user: User) -> None:
    add_rule("org", ["user", "header:X-Org"])
    caller = caller_of("user", str(user.pk))
    [unread] = counters_now(caller).unread
    assert (unread.rule.slug, unread.missing) == ("org", ("header:X-Org",))
    ask(user, HTTP_X_ORG="acme")
    assert counter(caller_of("user", str(user.pk), ["header:X-Org=acme"]), "org").used == 1


def test_a_digest_alone_finds_the_counters(add_rule: Callable[..., Rule], user: User, free: Tier) -> None:
    add_rule("export", ["user"])
    ask(user, 2)
    assert counter(caller_of("digest", digest(f"user:{user.pk}")), "export").used == 2
    assert caller_of("user", str(user.pk)).digest == digest(f"user:{user.pk}")


def test_an_api_key_by_itself_or_by_its_hash(add_rule: Callable[..., Rule]) -> None:
    add_rule("api", ["api_key"])
    AccessEntry.objects.create(kind="api_key", value=hash_api_key("s3cret"), action="deny")
    AccessEntry.objects.update(expires_at="2020-01-01T00:00Z")
    ask(HTTP_X_API_KEY="s3cret")
    for text in ("s3cret", hash_api_key("s3cret")):
        caller = caller_of("api_key", text)
        assert caller.value == hash_api_key("s3cret")
        assert counter(caller, "api").used == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [("user", ""), ("user", "a\0"), ("ip", "nonsense"), ("partition", "nonsense"), ("partition", "header:X="),
     ("digest", "short"), ("colour", "red"), ("user", "x" * 2_000)],
)  # fmt: skip
def test_what_is_no_caller_is_rejected(kind: str, value: str) -> None:
    with pytest.raises(UnknownCaller):
        caller_of(kind, value)


def test_one_call_for_all_rules(
    add_rule: Callable[..., Rule], user: User, redis_client: redis.Redis, django_assert_num_queries: Any
) -> None:
    for number in range(20):
        add_rule(f"rule-{number}", ["user"])
    caller = caller_of("user", str(user.pk))
    counters_now(caller)
    before = scripts_run(redis_client)
    with django_assert_num_queries(4):  # version, groups, assignments, entries
        assert len(counters_now(caller).counters) == 20
    assert scripts_run(redis_client) == before + 1


def test_report_has_the_last_rejections_of_a_caller(add_rule: Callable[..., Rule], user: User) -> None:
    add_rule("export", ["user"], quota=1)
    ask(user, 3)
    caller = caller_of("user", str(user.pk))
    found = report_of(caller)
    assert [(each.rule, each.times) for each in found.rejections] == [("Export", 2)]
    assert [each.blocked for each in found.counters] == [True]
    found = report_of(caller_of("digest", caller.digest))  # its tier is that of the last rejection
    assert [each.times for each in found.rejections] == [2]
    assert [each.blocked for each in found.counters] == [True]


def scripts_run(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


@pytest.mark.django_db(transaction=True)
def test_rules_that_another_process_has_changed_are_read(
    add_rule: Callable[..., Rule], user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_rule("export", ["user"])
    ask(user)
    known = cache.current_rules()
    add_rule("search", ["user"])
    cache.current_rules()
    monkeypatch.setattr(cache, "current_rules", lambda: known)  # as in a process that has not heard of it
    assert {each.rule.slug for each in counters_now(caller_of("user", str(user.pk))).counters} == {"export", "search"}


def test_a_user_by_key_or_name_unless_two_fit(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    key = str(user.pk)
    for text in (key, "ann", f"id:{key}", f"pk:{key}", "name:ann"):
        assert caller_of("user", text).known == {"user": key}
    other = User.objects.create_user(key)
    with pytest.raises(UnknownCaller, match=rf"login name {key} \(id {other.pk}\) and id {key}\. Enter name:{key} or"):
        caller_of("user", key)
    assert caller_of("user", f"id:{key}").user == user
    assert caller_of("user", f"name:{key}").user == other
    assert caller_of("partition", f"user:id:{key}").user == user
    with pytest.raises(UnknownCaller):
        caller_of("user", "name:nobody")
    assert caller_of("user", "id:424242").known == {"user": "424242"}  # deleted, and yet has counters
    monkeypatch.delattr("django.contrib.auth.base_user.BaseUserManager.get_by_natural_key")
    assert caller_of("user", key).user == user


def reference(decision: Any) -> str:
    assert not decision.allowed
    return str(decision.binding.reference)


def test_a_reference_to_rules_that_differ_in_case_means_the_one_that_is_spelled(
    add_rule: Callable[..., Rule], user: User
) -> None:
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
    lines = manage("caller", "--reference", f"site#{everybody()[:8]}").splitlines()
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
    first, second = manage("caller", "--reference", reference(ask())).splitlines()
    assert first == f"requests without what the rule org counts by ({caller.digest}): all of them are rejected"
    assert second.startswith("Rejected by Org (limit now: 5 per hour, sliding window): 2 since ")
    assert second.endswith(f", now: never allowed (org#{caller.digest[:8]})")


def test_counters_are_read_by_one_call_for_each_shard_and_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sharded(MemoryEngine):
        def shard_of(self, charge: Charge) -> int:
            return int(charge.key[-1]) % 2

        def peek(self, charges: Any, now_us: int | None = None) -> list[Verdict]:
            asked.append(sorted({self.shard_of(each) for each in charges}))
            return super().peek(charges, now_us)

    asked: list[list[int]] = []
    monkeypatch.setattr("django_ratelimiter.backend._engine", Sharded())
    rule = RuleRecord("export", "Export", "enforce", {})
    charges = [Charge(f"export:{number}", Limit(5, 60)) for number in range(3_000)]
    twice = [*charges, charges[2_998]]  # which throttles may share
    found = read(Counters([Counter(rule, "", LimitRecord(each.limit), each, "") for each in twice]))
    assert asked == [[0], [1], [0], [1], [0]]
    assert [each.left for each in found.counters] == [5] * 3_001
