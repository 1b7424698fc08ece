"""Acts on a caller: what they take, what they do, that it is checked and logged, and that none is done twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser, Group, Permission, User
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.test import RequestFactory
from django.test.utils import override_settings
from django.utils import timezone
from hypothesis import example, given, settings
from hypothesis import strategies as st

from django_ratelimiter.backend import get_engine
from django_ratelimiter.engine import Charge, Limit, MemoryEngine
from django_ratelimiter.engine.calendars import Anchor
from django_ratelimiter.engine.redis import RedisEngine
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import digest, identify
from django_ratelimiter.inspection import acts, giving_back, performing
from django_ratelimiter.inspection.acts import (
    Allow,
    Deny,
    EndAccess,
    EndLease,
    GiveBack,
    GrantMore,
    InvalidAct,
    MoveTier,
    Outcome,
    ResetCounters,
    can_end,
    counters_now,
    may_have_entry,
)
from django_ratelimiter.inspection.answer import explain
from django_ratelimiter.inspection.caller import Caller, caller_of
from django_ratelimiter.inspection.counters import Counter
from django_ratelimiter.inspection.giving_back import end_lease, give_back, leases_of
from django_ratelimiter.inspection.grounds import grounds_of
from django_ratelimiter.inspection.performing import new_token, perform, read_token
from django_ratelimiter.inspection.question import Question
from django_ratelimiter.inspection.references import everybody
from django_ratelimiter.inspection.tier import TierExplanation
from django_ratelimiter.inspection.words import rows_in_words
from django_ratelimiter.limiter.charges import access_entry_for
from django_ratelimiter.models import AccessEntry, Rule, Tier, TierAssignment
from django_ratelimiter.rules import cache, tiers
from django_ratelimiter.rules.cache import access_list, latest_rules
from django_ratelimiter.rules.records import LimitRecord
from django_ratelimiter.rules.ruleset import RuleSet
from django_ratelimiter.rules.tiers import Entitlement

from .test_counters import ask, counter

pytestmark = pytest.mark.django_db

AddRule = Callable[..., Rule]
Do = Callable[..., Outcome]

FRIDAY = timezone.now() + timedelta(days=3)


@pytest.fixture
def operator() -> User:
    return User.objects.create_superuser("operator")


@pytest.fixture
def caller(user: User) -> Caller:
    return caller_of("user", str(user.pk))


@pytest.fixture
def do(operator: User, caller: Caller) -> Do:
    """Perform an act for the caller: `do(act, number)`; each number works once."""

    def perform_it(act: Any, number: str = "1", reason: str = "he called") -> Outcome:
        return perform(operator, caller, act, reason, number)

    return perform_it


def test_resets_all_counters_and_says_that_it_took(
    add_rule: AddRule, caller: Caller, user: User, operator: User, do: Do
) -> None:
    for slug in ("export", "search"):
        add_rule(slug, ["user"], quota=2)
    add_rule("all", [])
    ask(user, 2)
    outcome = do(ResetCounters())
    assert outcome.text == "Reset 2 counters: export, search. Checked: none of them blocks the caller now."
    assert outcome.took
    assert ask(user).allowed
    assert counter(caller, "all").used == 3  # all callers' counter is left alone
    [entry] = LogEntry.objects.all()
    assert entry.change_message == "Reset 2 counters: export, search. Reason: he called [reset 1]"
    assert (entry.user, entry.object_repr, entry.object_id) == (operator, f"user {user.pk}", caller.digest)
    [line] = performing.log_of(caller)
    assert line == (entry.action_time, str(operator), "Reset 2 counters: export, search. Reason: he called", "1")


def test_resets_one_counter(add_rule: AddRule, caller: Caller, user: User, do: Do) -> None:
    add_rule("export", ["user"])
    add_rule("search", ["user"])
    ask(user)
    do(ResetCounters([counter(caller, "export").name]))
    assert (counter(caller, "export").used, counter(caller, "search").used) == (0, 1)
    with pytest.raises(InvalidAct, match=r"There is no such counter .* The caller's counters: \S+, \S+\."):
        do(ResetCounters([counter(caller, "export").name, "nothing:c60"]), "2")
    Rule.objects.all().delete()
    with pytest.raises(InvalidAct, match="No rule in force counts this caller"):
        do(ResetCounters(), "3")


def test_gives_back_once_however_often_it_is_sent(add_rule: AddRule, caller: Caller, user: User, do: Do) -> None:
    add_rule("export", ["user"], algorithm="fixed_window")
    ask(user, 5)
    act = GiveBack(counter(caller, "export").name, 2)
    assert "2 of 5 are left now" in do(act, "7", "an error of ours").text
    assert not do(act, "7", "an error of ours").changed
    assert counter(caller, "export").used == 3
    assert LogEntry.objects.count() == 1


def test_a_number_is_that_of_one_kind_of_act_on_one_caller(
    add_rule: AddRule, caller: Caller, user: User, operator: User, do: Do
) -> None:
    add_rule("export", ["user"], algorithm="fixed_window")
    ask(user, 5)
    act, other = GiveBack(counter(caller, "export").name, 1), caller_of("user", str(operator.pk))
    assert do(act, "7", "an error of ours").changed
    assert do(ResetCounters(), "7", "an error of ours").changed
    assert perform(operator, other, ResetCounters(), "an error of ours", "7").changed
    for who, again in ((caller, act), (caller, ResetCounters()), (other, ResetCounters())):
        assert not perform(operator, who, again, "an error of ours", "7").changed


def test_ends_a_lease(add_rule: AddRule, caller: Caller, user: User, do: Do) -> None:
    add_rule("jobs", ["user"], algorithm="concurrency", quota=2)
    ask(user, 2)
    jobs = counter(caller, "jobs")
    assert jobs.is_blocked
    [first, _second] = leases_of(jobs)
    outcome = do(EndLease(jobs.name, first.began_us), reason="hangs")
    assert outcome.text == "Ended a lease: jobs. Checked: 1 of 2 are free now."
    with pytest.raises(InvalidAct):
        do(EndLease(jobs.name, first.began_us), "2", "hangs")
    with pytest.raises(InvalidAct):
        do(GiveBack(jobs.name, 1), "3", "hangs")


def test_says_how_to_allow_more_where_there_is_no_tier(add_rule: AddRule, user: User, do: Do) -> None:
    add_rule("export", ["user"], quota=2)
    act = GrantMore(FRIDAY, Decimal(2))
    with pytest.raises(InvalidAct, match="Add a default tier under Tiers first"):
        do(act)
    Tier.objects.create(slug="gold", name="Gold")
    ask(user, 2)
    assert not ask(user).allowed  # the limit of “every other tier” is the same as without a tier
    assert do(act, "3").took
    assert ask(user).allowed


def test_doubles_until_friday(
    add_rule: AddRule, caller: Caller, user: User, operator: User, free: Tier, do: Do
) -> None:
    add_rule("export", ["user"], quota=2)
    ask(user, 2)
    assert not ask(user).allowed
    outcome = do(GrantMore(FRIDAY, Decimal(2)))
    assert outcome.took
    assert "Checked: it is in force. Every process applies it within 5 seconds." in outcome.text
    assert ask(user).allowed
    assert counter(caller, "export").capacity == 4
    [row] = TierAssignment.objects.all()
    assert (row.tier, row.user, row.multiplier, row.ends_at) == (None, user, 2, FRIDAY)
    assert (row.reason, row.created_by) == ("he called", operator)
    assert {entry.object_repr for entry in LogEntry.objects.all()} == {f"user {user.pk}", "user ann: their own tier"}
    grounds = grounds_of(caller, latest_rules())
    assert grounds.entitlement == Entitlement(latest_rules().tiers["free"], Decimal(2))
    found = grounds.tier
    assert (found.kind, found.assignment, found.multiplied_by, found.multiplied_until) == (
        "default", None, row.pk, FRIDAY
    )  # fmt: skip


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("multiplier", ["2", "0.5"])
def test_no_multiplier_changes_a_counter_that_all_callers_share(
    add_rule: AddRule, user: User, free: Tier, in_memory: bool, multiplier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_memory:
        monkeypatch.setattr("django_ratelimiter.backend._engine", MemoryEngine())
    add_rule("own", ["user"], quota=8)
    add_rule("site", [], quota=4)
    TierAssignment.objects.create(tier=free, user=user, multiplier=multiplier)
    explained = {each.rule.slug: each for each in explain(Question(path="/", user=user.username)).rules}
    tier = TierExplanation(multiplier=Decimal(multiplier))
    assert ["times" in rows_in_words(explained[slug], tier) for slug in ("own", "site")] == [True, False]
    capacities = {slug: each.counters[0].capacity for slug, each in explained.items()}
    assert capacities == {"own": int(8 * Decimal(multiplier)), "site": 4}
    caller = caller_of("user", str(user.pk))
    assert {slug: counter(caller, slug).capacity for slug in capacities} == capacities
    decided = [ask(user) for _ in range(5)]
    assert [each.allowed for each in decided] == [True] * 4 + [False]
    assert {each.rule.slug: each.limit.capacity for each in decided[0].results} == capacities
    assert str(ask(User.objects.create_user("bob")).binding.rule) == "site"


def test_another_tier_for_a_while_and_says_if_another_assignment_counts(
    caller: Caller, user: User, free: Tier, pro: Tier, do: Do
) -> None:
    assert do(MoveTier(FRIDAY, "pro"), reason="trial").took
    assert str(grounds_of(caller, latest_rules()).entitlement.tier) == "pro"
    outcome = do(MoveTier(FRIDAY, "free"), "2", "trial")  # of lower rank
    assert not outcome.took
    assert "But another assignment applies: tier pro" in outcome.text
    again = do(MoveTier(FRIDAY, "free"), "2", "trial")
    assert not again.took
    assert not again.changed
    assert "was not in force" in again.text
    assert performing.log_of(caller)[0].number == "2"  # it was done, so its page says where
    with pytest.raises(InvalidAct):
        do(MoveTier(FRIDAY, "gold"), "3", "trial")


def test_grants_to_addresses_keys_and_partitions(operator: User, free: Tier, pro: Tier) -> None:
    for number, (kind, value) in enumerate([("ip", "192.0.2.7"), ("partition", "header:X-Org=acme")]):
        assert perform(operator, caller_of(kind, value), MoveTier(FRIDAY, "pro"), "trial", str(number)).took
    assert set(TierAssignment.objects.values_list("partition", flat=True)) == {"ip:192.0.2.7", "header:X-Org:acme"}
    assert perform(operator, caller_of("api_key", "s3cret"), MoveTier(FRIDAY, "pro"), "trial", "9").took
    with pytest.raises(InvalidAct):
        perform(operator, caller_of("digest", "a" * 22), MoveTier(FRIDAY, "pro"), "trial", "10")


def test_denies_and_allows_until(caller: Caller, user: User, operator: User, add_rule: AddRule, do: Do) -> None:
    add_rule("export", ["user"], quota=1)
    assert do(Deny(FRIDAY), reason="abuse").took
    assert ask(user).access.action == "deny"
    with pytest.raises(InvalidAct, match=f"“deny user {user.pk}” is in force until .* Edit it on its own page"):
        do(Allow(FRIDAY), "2", "sorry")
    with pytest.raises(InvalidAct):
        do(Deny(FRIDAY - timedelta(hours=1)), "2", "less")
    assert do(Deny(FRIDAY + timedelta(hours=1)), "2", "longer").took
    AccessEntry.objects.update(expires_at=None, reason="for good")
    with pytest.raises(InvalidAct, match="is in force without an end"):
        do(Deny(FRIDAY), "6", "less")
    assert AccessEntry.objects.get().reason == "for good"
    AccessEntry.objects.update(expires_at=timezone.now())  # over
    assert do(Allow(FRIDAY), "5", "sorry").took
    assert ask(user, 3).allowed
    [entry] = AccessEntry.objects.all()  # one row for a caller
    assert (entry.action, entry.reason, entry.expires_at) == ("allow", "sorry", FRIDAY)
    access = grounds_of(caller, latest_rules()).access
    assert access is not None
    assert (access.entry, access.until) == (entry.pk, FRIDAY)
    with pytest.raises(InvalidAct):
        do(Deny(timezone.now()), "4", "abuse")


def test_ends_the_entry_of_exactly_this_caller(caller: Caller, user: User, add_rule: AddRule, do: Do) -> None:
    add_rule("export", ["user"], quota=1)
    with pytest.raises(InvalidAct, match="No access entry of this caller's own is in force"):
        do(EndAccess(), reason="sorry")
    assert do(Deny(FRIDAY), "2", "abuse").took
    assert not ask(user).allowed
    outcome = do(EndAccess(), "3", "paid")
    assert outcome.took
    assert f"Ended the access entry “deny user {user.pk}”. Checked: no access entry applies any more" in outcome.text
    assert ask(user).allowed
    entry = AccessEntry.objects.get()
    assert (entry.reason, LogEntry.objects.filter(object_id=str(entry.pk)).count()) == ("abuse", 2)
    assert not do(EndAccess(), "3", "paid").changed, "sent twice"
    AccessEntry.objects.update(expires_at=None)
    with pytest.raises(InvalidAct, match="is in force without an end"):
        do(EndAccess(), "4", "paid")


def test_an_entry_of_a_network_still_counts_and_is_told(operator: User) -> None:
    for value in ("192.0.2.0/24", "192.0.2.7"):
        AccessEntry.objects.create(action="deny", kind="ip", value=value, expires_at=FRIDAY)
    outcome = perform(operator, caller_of("ip", "192.0.2.7"), EndAccess(), "sorry", "1")
    assert (outcome.took, "But another access entry applies." in outcome.text) == (False, True)
    assert AccessEntry.objects.get(value="192.0.2.0/24").expires_at == FRIDAY
    with pytest.raises(InvalidAct, match="No access entry of this caller's own"):
        perform(operator, caller_of("ip", "192.0.2.7"), EndAccess(), "sorry", "2")
    with pytest.raises(InvalidAct, match="by values that an access entry can name"):
        perform(operator, caller_of("digest", everybody()), Deny(FRIDAY), "sorry", "3")


def by_rule(value: str, slug: str) -> Caller:
    """A caller of whom only the digest is known, and the rule that has listed it."""
    return replace(caller_of("digest", digest(value)), rule=slug)


@pytest.mark.parametrize(("kind", "listed"), [
    ("ip", by_rule("ip:127.0.0.1", "a")), ("user or ip", by_rule("ip:127.0.0.1", "b")),
    ("ip or user", caller_of("digest", digest("ip:127.0.0.1"))),
    ("user|ip", by_rule("user:7|ip:127.0.0.1", "c")), ("header:X-Org", caller_of("partition", "header:X-Org=acme")),
])  # fmt: skip
def test_whom_only_a_list_knows_can_be_denied_and_allowed(
    operator: User, add_rule: AddRule, kind: str, listed: Caller
) -> None:
    rules = {"a": (["ip"], "skip"), "b": (["user"], "ip"), "c": (["user", "ip"], "skip")}
    for slug, (by, missing) in rules.items():
        if slug == listed.rule or (not listed.rule and slug != "c"):
            add_rule(slug, by, quota=1, missing_partition=missing)
    user = User(pk=7) if kind == "user|ip" else AnonymousUser()
    for number, (act, action) in enumerate(((Deny(FRIDAY), "deny"), (EndAccess(), None), (Allow(FRIDAY), "allow"))):
        outcome = perform(operator, listed, act, "abuse", str(number))
        assert outcome.took, outcome.text
        request = RequestFactory().get("/", HTTP_X_ORG="acme")
        request.user = user
        entry = access_entry_for(access_list(), identify(request))
        assert (entry and entry.action) == action
        found = grounds_of(listed, latest_rules())
        assert (found.access and found.access.action) == action
        assert can_end(listed, found.access) is (action is not None)
    [row] = AccessEntry.objects.all()
    assert (row.kind, row.value) == ("digest", f"{kind}:{listed.digest}")


def test_an_entry_for_a_digest_that_no_list_has_shown_is_not_called_in_force(operator: User, add_rule: AddRule) -> None:
    add_rule("a", ["ip"], quota=1)
    text = perform(operator, caller_of("digest", "a" * 22), Deny(FRIDAY), "abuse", "1").text
    assert "not known whether a caller has this digest" in text
    assert "in force" not in text


@pytest.mark.parametrize("listed", [by_rule("ip:127.0.0.1", "a"), caller_of("digest", digest("ip:127.0.0.1"))])
def test_whom_only_a_list_knows_can_be_allowed_more(operator: User, add_rule: AddRule, listed: Caller) -> None:
    free, _pro = (Tier.objects.create(slug=slug, name=slug, rank=rank) for rank, slug in enumerate(("free", "pro")))
    Tier.objects.filter(pk=free.pk).update(default_for="anonymous")
    add_rule("a", ["ip"], quota=1)
    request = RequestFactory().get("/")
    request.user = AnonymousUser()
    for number, (act, found) in enumerate(
        ((GrantMore(FRIDAY, Decimal(3)), ("free", 3)), (MoveTier(FRIDAY, "pro"), ("pro", 3)))
    ):
        outcome = perform(operator, listed, act, "a customer", str(number))
        assert outcome.took, outcome.text
        granted = identify(request).entitlement(latest_rules())
        assert (str(granted.tier), granted.multiplier) == found
    shown = grounds_of(caller_of("ip", "127.0.0.1"), latest_rules())
    assert (str(shown.entitlement.tier), shown.entitlement.multiplier) == ("pro", 3)
    assert {row.partition.rpartition(":")[2] for row in shown.assignments} == {listed.digest}
    request.META["REMOTE_ADDR"] = "192.0.2.7"
    assert identify(request).entitlement(latest_rules()).multiplier == 1


def test_who_is_counted_by_code_s_own_value_cannot_be_denied(operator: User, add_rule: AddRule) -> None:
    add_rule("a", ["ip"], quota=1)
    listed = by_rule("anything", "code:shop.order")
    assert not may_have_entry(listed)
    with pytest.raises(InvalidAct, match="by values that an access entry can name"):
        perform(operator, listed, Deny(FRIDAY), "abuse", "1")


@pytest.mark.parametrize(
    ("act", "permission"),
    [(ResetCounters(), "unblock_caller"), (GiveBack("x", 1), "unblock_caller"), (EndLease("x", 1), "unblock_caller"),
     (GrantMore(FRIDAY, Decimal(2)), "grant_caller"), (MoveTier(FRIDAY, "free"), "grant_caller"),
     (Deny(FRIDAY), "grant_caller"), (EndAccess(), "grant_caller")],
)  # fmt: skip
def test_each_act_takes_its_own_permission(act: Any, permission: str, caller: Caller) -> None:
    others = Permission.objects.filter(content_type__app_label="django_ratelimiter").exclude(codename=permission)
    staff = User.objects.create_user("staff", is_staff=True)
    staff.user_permissions.set(others)
    with pytest.raises(PermissionDenied):
        perform(staff, caller, act, "why not", "1")
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("reason", ["", "  ", "x" * 201, "a\0"])
def test_a_reason_is_required(reason: str, add_rule: AddRule, do: Do) -> None:
    add_rule("export", ["user"])
    with pytest.raises(InvalidAct):
        do(ResetCounters(), reason=reason)
    assert not LogEntry.objects.exists()


def test_what_is_rejected_is_not_logged_and_what_redis_may_have_done_is(
    free: Tier, add_rule: AddRule, monkeypatch: pytest.MonkeyPatch, do: Do
) -> None:
    add_rule("export", ["user"])

    def reject() -> Any:
        raise EngineUnavailable("rejected")

    monkeypatch.setattr(acts, "get_engine", reject)
    with pytest.raises(EngineUnavailable):
        do(ResetCounters())
    with pytest.raises(ValidationError):
        do(GrantMore(FRIDAY, Decimal("0.00001")), "2")
    [entry] = LogEntry.objects.all()
    assert entry.change_message == "Tried, without an answer from Redis. Reason: he called"
    monkeypatch.undo()
    assert do(ResetCounters()).changed  # it was not done under this number
    assert not TierAssignment.objects.exists()


@pytest.mark.parametrize("made", [lambda name: ResetCounters(), lambda name: GiveBack(name, 2)])
def test_what_could_not_be_looked_up_afterwards_is_not_said_to_have_taken(
    made: Callable[[str], Any], add_rule: AddRule, caller: Caller, user: User, monkeypatch: pytest.MonkeyPatch, do: Do
) -> None:
    add_rule("export", ["user"], quota=2)
    ask(user, 2)
    name, read = counter(caller, "export").name, acts.read

    def unanswered(found: Any) -> Any:
        def reject(*_charges: Any) -> Any:
            raise EngineUnavailable("rejected")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(get_engine(), "peek", reject)
            return read(found)

    monkeypatch.setattr(acts, "read", unanswered)
    outcome = do(made(name))
    assert not outcome.took
    assert outcome.changed
    assert outcome.text.endswith("It could not be checked, because Redis does not answer now.")
    assert ask(user).allowed  # it was done


def test_who_is_blocked_again_at_once_is_said_to_be(
    add_rule: AddRule, user: User, monkeypatch: pytest.MonkeyPatch, do: Do
) -> None:
    add_rule("export", ["user"], quota=2)
    ask(user, 2)
    reset = get_engine().reset

    def outpaced(charges: Any) -> None:
        reset(charges)
        ask(user, 2)

    monkeypatch.setattr(get_engine(), "reset", outpaced)
    outcome = do(ResetCounters())
    assert outcome.text == "Reset 1 counter: export. Still blocked by: export."
    assert not outcome.took


@pytest.mark.django_db(transaction=True)
def test_nobody_waits_for_calls_of_the_engine(
    caller: Caller, free: Tier, add_rule: AddRule, monkeypatch: pytest.MonkeyPatch, do: Do
) -> None:
    """The lock that whoever saves a rule needs is not taken meanwhile, and the log says already that it has begun."""
    add_rule("export", ["user"])
    open_now: list[tuple[bool, str]] = []
    reset = get_engine().reset

    def watched(charges: Any) -> None:
        [line] = performing.log_of(caller)
        assert not line.number
        open_now.append((connection.in_atomic_block, line.text))
        reset(charges)

    monkeypatch.setattr(get_engine(), "reset", watched)
    do(ResetCounters())
    assert open_now == [(False, "Started. The result is not known. Reason: he called")]
    assert LogEntry.objects.get().change_message.startswith("Reset 1 counter: export. Reason: he called [reset 1]")


@pytest.mark.django_db(transaction=True)
def test_what_is_only_begun_is_not_said_to_be_done(
    free: Tier, add_rule: AddRule, monkeypatch: pytest.MonkeyPatch, do: Do
) -> None:
    """Neither while the engine has it, nor after the process has ended there."""
    add_rule("export", ["user"])
    meanwhile: list[Outcome] = []

    def crash(charges: Any) -> None:
        meanwhile.append(do(ResetCounters()))
        raise SystemExit

    monkeypatch.setattr(get_engine(), "reset", crash)
    with pytest.raises(SystemExit):
        do(ResetCounters())
    monkeypatch.undo()
    for outcome in (*meanwhile, do(ResetCounters())):
        assert not outcome.took
        assert not outcome.changed
        assert outcome.text.startswith("This was already started, and the result is not known.")
    assert do(ResetCounters(), "2").took


def test_a_token_is_good_for_its_operator_and_caller_alone(caller: Caller, operator: User) -> None:
    token = new_token(operator, caller)
    assert read_token(token, operator, caller)
    assert read_token(new_token(operator, caller), operator, caller) != read_token(token, operator, caller)
    other = caller_of("ip", "192.0.2.7")
    for user, who, text in ((operator, other, token), (User(pk=9_999), caller, token), (operator, caller, "forged")):
        with pytest.raises(InvalidAct):
            read_token(text, user, who)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["user", "group", "ip", "network", "other"]),
        st.sampled_from(["free", "pro", None]),
        st.sampled_from([(None, None), (-1, None), (None, 1), (1, None), (-2, -1)]),
        st.integers(1, 3),
        st.sampled_from([None, None, 15, 31]),
    ),
    max_size=5,
)


def by_the_docs(rows: Any, plan: str, rules: RuleSet) -> Entitlement:
    """What docs/howto/rules-and-tiers.md says of these assignments, in the order of the page."""
    active = [
        ((start is not None or end is not None, tier == "pro", number), tier, multiplier, day)
        for number, (who, tier, (start, end), multiplier, day) in enumerate(rows)
        if who != "other" and (start is None or start < 0) and (end is None or end > 0)
    ]
    active.sort(reverse=True, key=itemgetter(0))
    tiered = [(tier, multiplier) for _, tier, multiplier, _ in active if tier]
    tier, multiplier = tiered[0] if tiered else (plan if plan in rules.tiers else "free", 1)
    more = [each for _, tier, each, _ in active if tier is None and each != 1]
    days = [day for *_, day in active if day]
    anchor = Anchor(days[0]) if days else None
    return Entitlement(rules.tiers[tier], Decimal(multiplier * (more[0] if more else 1)), anchor)


@settings(max_examples=40, deadline=None)
@example(rows=[("user", None, (None, 1), 2, None), ("ip", None, (None, 1), 1, 31)], plan="pro")
@given(rows=ROWS, plan=st.sampled_from(["", "pro", "gone"]))
def test_agrees_with_what_a_request_gets(rows: Any, plan: str, django_db_setup: None) -> None:
    Tier.objects.all().delete()
    TierAssignment.objects.all().delete()
    for rank, slug in enumerate(("free", "pro")):
        Tier.objects.create(slug=slug, name=slug, rank=rank, default_for="authenticated" if slug == "free" else "none")
    user, _ = User.objects.update_or_create(username="ann", defaults={"first_name": plan})
    group, _ = Group.objects.get_or_create(name="staff")
    user.groups.set([group])
    subjects: Any = {
        "user": {"user": user}, "group": {"group": group}, "ip": {"partition": "ip:192.0.2.7"},
        "network": {"partition": "ip:192.0.2.0/24"}, "other": {"partition": "ip:198.51.100.1"},
    }  # fmt: skip
    seen, written = set(), list[Any]()
    for row in rows:
        who, tier, (start, end), multiplier, day = row
        dated = [None if days is None else timezone.now() + timedelta(days=days) for days in (start, end)]
        if dated == [None, None] and tier and (who, tier) in seen:
            continue
        seen.add((who, tier))
        written.append(row)
        TierAssignment.objects.create(
            **subjects[who], tier=Tier.objects.filter(slug=tier).first(), starts_at=dated[0], ends_at=dated[1],
            multiplier=multiplier, anchor_day=day,
        )  # fmt: skip
    tiers.forget()
    caller = caller_of("partition", f"user:{user.pk}|ip:192.0.2.7")
    rules = cache.current_rules()
    with override_settings(RATELIMITER={"CACHE_ALIAS": "ratelimit", "TIER_RESOLVER": "user.first_name"}):
        real = cache.entitlement_for(rules, caller.user_id, caller.api_key, caller.partition)
        assert grounds_of(caller, rules).entitlement == real == by_the_docs(written, plan, rules)
    assert counters_now(caller).problem == ""


#: In the middle of a minute of the clock, so that no window ends meanwhile.
START = 1_800_000_030_000_000


class Clock:
    """A time that the test moves on; both engines decide by it."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.now = engine, START

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def check(self, charges: Any) -> Any:
        return self.engine.check(charges, now_us=self.now)

    def peek(self, charges: Any) -> Any:
        return self.engine.peek(charges, now_us=self.now)


@pytest.fixture(params=["memory", "redis"])
def engine(request: pytest.FixtureRequest, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(MemoryEngine() if request.param == "memory" else RedisEngine(redis_client, "back"))
    monkeypatch.setattr(giving_back, "get_engine", lambda: clock)
    return clock


def counter_of(limit: Limit, cost: int = 1) -> Counter:
    charge = Charge("export:ann", limit, cost)
    return Counter(None, "", LimitRecord(limit), charge, "ann")  # type: ignore[arg-type]


def left(engine: Clock, counter: Counter) -> int:
    return int(engine.peek([counter.charge])[0].remaining)


LIMITS = [
    Limit(10, 60, "fixed_window"),
    Limit(10, 60, "fixed_window", anchor="first_request"),
    Limit(10, None, "fixed_window", calendar="month"),
    Limit(10, 60, "sliding_window_log"),
    Limit(10, 60, "sliding_window_counter"),
    Limit(10, 60, "sliding_window_slots", slots=6),
    Limit(10, 3600, "token_bucket"),
    Limit(10, 3600, "token_bucket", burst=12),
    Limit(10, 3600, "token_bucket", refill="interval"),
    Limit(10, 3600, "gcra"),
    Limit(10, 3600, "leaky_bucket"),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_gives_back_exactly_so_many(engine: Clock, limit: Limit) -> None:
    counter = counter_of(limit)
    for _ in range(limit.capacity):
        engine.now += 1_000_000
        assert engine.check([counter.charge])[0].allowed
    before = left(engine, counter)
    assert give_back(counter, 4) == 4
    assert left(engine, counter) == before + 4
    assert give_back(counter, 100) == limit.capacity - before - 4  # no more than was used
    assert left(engine, counter) == limit.capacity
    assert give_back(counter, 1) == 0


def test_a_request_of_several_units_can_be_given_back_in_part(engine: Clock) -> None:
    counter = counter_of(Limit(10, 60, "sliding_window_log"), 5)
    engine.check([counter.charge])
    engine.now += 1_000_000
    engine.check([counter.charge])
    assert give_back(counter, 7) == 7
    assert left(engine, counter) == 7


def test_a_sliding_window_gives_back_what_the_window_before_holds(engine: Clock) -> None:
    counter = counter_of(Limit(10, 60, "sliding_window_counter"), 10)
    engine.check([counter.charge])
    engine.now += 45_000_000  # a quarter of the next window is gone
    assert left(engine, counter) == 2
    assert give_back(counter, 4) == 3  # of which each unit counts for three quarters
    assert left(engine, counter) == 5


def test_says_what_can_only_be_reset(engine: Clock) -> None:
    counter = counter_of(Limit(10, 60, "sliding_window_counter"))
    engine.check([counter.charge._replace(cost=10)])
    engine.now += 45_000_000
    engine.check([counter.charge])
    assert left(engine, counter) == 1
    assert give_back(counter, 5) == 1


def test_leases_are_listed_and_ended_one_by_one(engine: Clock) -> None:
    counter = counter_of(Limit(3, 60, "concurrency"))
    taken = []
    for _ in range(3):
        engine.now += 1_000_000
        taken += engine.check([counter.charge])
    leases = leases_of(counter)
    assert [lease.began_us for lease in leases] == [verdict.at_us for verdict in taken]
    assert [lease.ends_at.timestamp() for lease in leases] == [(each.at_us / 1e6) + 60 for each in taken]
    assert end_lease(counter, leases[1].began_us)
    assert [lease.began_us for lease in leases_of(counter)] == [taken[0].at_us, taken[2].at_us]
    assert not end_lease(counter, leases[1].began_us)
    engine.release(taken)  # the responses end, that of the lease which is gone as well
    assert left(engine, counter) == 3
