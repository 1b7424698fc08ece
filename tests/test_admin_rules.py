"""The admin's pages of rules, tiers and assignments."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ratelimiter.admin.words import limit_in_words, place_in_words
from django_ratelimiter.engine.limits import Limit
from django_ratelimiter.exceptions import EngineUnavailable
from django_ratelimiter.identity import hash_api_key
from django_ratelimiter.models import Rule, RuleLimit, RuleSetState, RuleSetVersion, Tier, TierAssignment

pytestmark = pytest.mark.django_db

RULES = reverse("admin:django_ratelimiter_rule_changelist")
ADD_RULE = reverse("admin:django_ratelimiter_rule_add")
ADD_ASSIGNMENT = reverse("admin:django_ratelimiter_tierassignment_add")


def page_of(row: Any, kind: str = "change") -> str:
    """The address of a row's page."""
    return reverse(f"admin:{row._meta.label_lower.replace('.', '_')}_{kind}", args=[row.pk])


def rule_form(*limits: dict[str, Any], stored: int = 0, **fields: Any) -> dict[str, Any]:
    """What the browser sends for a rule with these limits, of which the first `stored` are rows already."""
    form: dict[str, Any] = {
        "name": "Export",
        "slug": "export",
        "mode": "enforce",
        "methods": ["GET", "POST"],
        "path_kind": "prefix",
        "path": "/api/export/",
        "partition_by": ["user"],
        "missing_partition": "ip",
        "failure_policy": "closed",
        "cost": "1",
        "priority": "100",
        "limits-TOTAL_FORMS": len(limits),
        "limits-INITIAL_FORMS": stored,
    }
    for number, limit in enumerate(limits):
        for name, value in {"algorithm": "sliding_window_counter", "tier": "", **limit}.items():
            form[f"limits-{number}-{name}"] = value
    return form | fields


def stored(*limits: RuleLimit) -> list[dict[str, Any]]:
    """What the browser sends for limits that it was shown."""
    return [
        {
            "id": limit.pk,
            "rule": limit.rule_id,
            "tier": limit.tier_id or "",
            "algorithm": limit.algorithm,
            "quota": limit.quota,
            "window_seconds": limit.window_seconds,
        }
        for limit in limits
    ]


def shown(response: Any) -> str:
    """The text of a page, entities resolved."""
    return html.unescape(response.content.decode())


def errors_of(response: Any) -> dict[str, Any]:
    """What a page of a rule that was sent back says: by field, and by field of each limit under "limits"."""
    assert response.status_code == 200, "it was saved"
    context = response.context
    formset = context["inline_admin_formsets"][0].formset
    limits = [dict(errors) for errors in formset.errors]
    assert not formset.non_form_errors()
    for error in [message for errors in limits for messages in errors.values() for message in messages]:
        assert error in shown(response)  # none is dropped on the way to the page
    return dict(context["adminform"].form.errors) | {"limits": limits}


@pytest.fixture
def free() -> Tier:
    return Tier.objects.create(slug="free", name="Free", rank=1)


@pytest.fixture
def rule(free: Tier) -> Rule:
    """A rule with a limit for free callers and one for the others."""
    rule = Rule.objects.create(slug="export", name="Export", path="/api/export/", path_kind="prefix")
    RuleLimit.objects.create(rule=rule, tier=free, quota=100, window_seconds=Decimal(60))
    RuleLimit.objects.create(rule=rule, quota=5, window_seconds=Decimal(1))
    return rule


@pytest.fixture
def operator(client: Client) -> Iterator[Callable[..., Client]]:
    """A client logged in as a member of staff with these permissions only: `operator("view_rule")`."""

    def log_in(*codenames: str) -> Client:
        user = User.objects.create_user("operator", password="x", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def engine_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishing fails."""

    def get_engine() -> Any:
        raise EngineUnavailable("refused")

    monkeypatch.setattr("django_ratelimiter.rules.versions.get_engine", get_engine)


def number() -> int:
    """The number of the version in force."""
    return RuleSetState.objects.get().number


class TestSave:
    def test_adds_a_rule_with_its_limits_as_one_version(self, admin_client: Client, free: Tier) -> None:
        before = number()
        sent = rule_form(
            {"tier": free.pk, "quota": 100, "window_seconds": "60"},
            {"tier": free.pk, "quota": 9, "window_seconds": "1.5", "algorithm": "token_bucket", "burst": 12},
            {"unlimited": "on"},
        )
        response = admin_client.post(ADD_RULE, sent)
        assert (response.status_code, response["Location"]) == (302, RULES)
        rule = Rule.objects.get()
        assert (rule.methods, rule.partition_by, rule.failure_policy) == (["GET", "POST"], ["user"], "closed")
        assert [str(limit.to_limit() and limit) for limit in rule.limits.all()] == [
            "free: 9 / 1.500000 s",
            "free: 100 / 60.000000 s",
            "None",
        ]
        assert number() == before + 1
        version = RuleSetVersion.objects.get(number=before + 1)
        assert version.author == User.objects.get(username="admin")
        assert version.summary == "rule export added"
        assert [len(rule["limits"]) for rule in version.snapshot["rules"]] == [3]

    def test_changes_rule_and_limits_as_one_version(self, admin_client: Client, rule: Rule) -> None:
        before = number()
        limits = stored(*rule.limits.all())
        limits[0]["quota"] = 7
        limits[1]["DELETE"] = "on"
        added = {"tier": "", "quota": 3, "window_seconds": "3600", "algorithm": "fixed_window"}
        response = admin_client.post(page_of(rule), rule_form(*limits, added, stored=2, cost="2"))
        assert response.status_code == 302
        assert number() == before + 1
        (compiled,) = RuleSetVersion.objects.get(number=before + 1).snapshot["rules"]
        assert compiled["cost"] == 2
        assert [(limit["tier"], limit["quota"]) for limit in compiled["limits"]] == [("free", 7), (None, 3)]

    def test_what_is_refused_takes_no_number(self, admin_client: Client, rule: Rule) -> None:
        before = number(), RuleSetVersion.objects.count()
        limits = stored(*rule.limits.all())
        limits[0]["quota"] = 0
        response = admin_client.post(page_of(rule), rule_form(*limits, stored=2, path="api"))
        assert set(errors_of(response)) == {"path", "limits"}
        assert (number(), RuleSetVersion.objects.count()) == before

    def test_a_tier_is_part_of_the_rule_set(self, admin_client: Client, free: Tier) -> None:
        before = number()
        sent = {"name": "Free", "slug": "free", "rank": "3", "default_for": "anonymous"}
        assert admin_client.post(page_of(free), sent).status_code == 302
        assert number() == before + 1
        assert RuleSetVersion.objects.get(number=number()).snapshot["tiers"][0]["rank"] == 3

    def test_deleting_is_one_version(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        before = number()
        assert "100 / 60" in shown(admin_client.get(page_of(free, "delete")))  # it says what goes along
        assert admin_client.post(page_of(rule, "delete"), {"post": "yes"}).status_code == 302
        assert number() == before + 1
        other = Tier.objects.create(slug="pro", name="Pro")
        before = number()
        action = {"action": "delete_selected", "_selected_action": [free.pk, other.pk], "post": "yes"}
        assert admin_client.post(reverse("admin:django_ratelimiter_tier_changelist"), action).status_code == 302
        assert (number(), Tier.objects.count()) == (before + 1, 0)
        assert RuleSetVersion.objects.get(number=number()).summary == "tiers deleted: Pro, Free"

    def test_warns_of_a_rule_that_limits_nobody(self, admin_client: Client) -> None:
        response = admin_client.post(ADD_RULE, rule_form(), follow=True)
        assert "This rule has no limits" in shown(response)

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("atomic_requests", [False, True])
    @pytest.mark.usefixtures("engine_is_down")
    def test_says_when_it_is_not_in_force_everywhere(
        self, admin_client: Client, rule: Rule, monkeypatch: pytest.MonkeyPatch, atomic_requests: bool
    ) -> None:
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic_requests)
        sent = rule_form(*stored(*rule.limits.all()), stored=2, name="New")
        response = admin_client.post(page_of(rule), sent, follow=True)
        assert "Saved, not yet in force everywhere" in shown(response)
        assert Rule.objects.get().name == "New"

    @pytest.mark.django_db(transaction=True)
    def test_says_nothing_when_it_is(self, admin_client: Client, rule: Rule) -> None:
        sent = rule_form(*stored(*rule.limits.all()), stored=2, name="New")
        assert "not yet in force" not in shown(admin_client.post(page_of(rule), sent, follow=True))


class TestForm:
    def test_lists_are_ticked(self, admin_client: Client, rule: Rule) -> None:
        Rule.objects.update(methods=["POST"], partition_by=["user", "ip"])
        form = admin_client.get(page_of(rule)).context["adminform"].form
        ticked = {
            name: [widget.data["value"] for widget in form[name] if widget.data["selected"]]
            for name in ("methods", "partition_by")
        }
        assert ticked == {"methods": ["POST"], "partition_by": ["user", "ip"]}

    def test_nothing_ticked_is_an_empty_list(self, admin_client: Client, rule: Rule) -> None:
        Rule.objects.update(methods=["POST"], partition_by=["ip"])
        sent = rule_form(*stored(*rule.limits.all()), stored=2, methods=[], partition_by=[])
        assert admin_client.post(page_of(rule), sent).status_code == 302
        assert Rule.objects.values_list("methods", "partition_by").get() == ([], [])

    def test_a_window_is_shown_without_padding(self, admin_client: Client, rule: Rule) -> None:
        RuleLimit.objects.filter(tier=None).update(window_seconds=Decimal("0.25"))
        page = shown(admin_client.get(page_of(rule)))
        assert 'value="60"' in page
        assert 'value="0.25"' in page

    @pytest.mark.parametrize(
        ("limit", "field", "says"),
        [
            ({"quota": "0", "window_seconds": "60"}, "quota", "Must be a whole number"),
            ({"quota": "ten", "window_seconds": "60"}, "quota", "Enter a whole number."),
            ({"quota": "-1", "window_seconds": "60"}, "quota", "greater than or equal to 0"),
            ({"quota": "5", "window_seconds": ""}, "window_seconds", "Needed, unless"),
            ({"quota": "5", "window_seconds": "0"}, "window_seconds", "above 0"),
            ({"quota": "5", "window_seconds": "0.0000001"}, "window_seconds", "decimal places"),
            ({"quota": "5", "window_seconds": "60", "burst": "9"}, "burst", "has no burst"),
            ({"quota": "5", "window_seconds": "60", "soft_quota": "5"}, "soft_quota", "below 5"),
            ({"quota": "1", "window_seconds": "60"}, "quota", "one costs 2"),
            ({"quota": "5", "window_seconds": "60", "unlimited": "on"}, "quota", "Leave this empty"),
            ({"quota": "5", "window_seconds": "60", "algorithm": "magic"}, "algorithm", "valid choice"),
        ],
    )
    def test_a_limit_that_cannot_be_is_refused_at_its_field(
        self, admin_client: Client, limit: dict[str, Any], field: str, says: str
    ) -> None:
        response = admin_client.post(ADD_RULE, rule_form(limit, cost="2"))
        (errors,) = errors_of(response)["limits"]
        assert says in errors[field][0]
        assert len(errors[field]) == 1
        assert not Rule.objects.exists()

    def test_cost_and_limits_are_raised_together(self, admin_client: Client, rule: Rule) -> None:
        limits = stored(*rule.limits.all())
        refused = admin_client.post(page_of(rule), rule_form(*limits, stored=2, cost="6"))
        assert errors_of(refused)["limits"] == [{}, {"quota": ["Never lets a request pass: one costs 6."]}]
        limits[1]["quota"] = 6
        assert admin_client.post(page_of(rule), rule_form(*limits, stored=2, cost="6")).status_code == 302

    @pytest.mark.parametrize("of_tier", [True, False])
    @pytest.mark.parametrize(
        ("second", "says"),
        [
            ({"quota": "7", "window_seconds": "60.0"}, "algorithm and window already"),
            ({"unlimited": "on"}, "has no other limits"),
        ],
    )
    def test_limits_that_contradict_each_other(
        self, admin_client: Client, free: Tier, of_tier: bool, second: dict[str, Any], says: str
    ) -> None:
        tier = {"tier": free.pk if of_tier else ""}
        sent = rule_form({"quota": "5", "window_seconds": "60"} | tier, second | tier)
        first, last = errors_of(admin_client.post(ADD_RULE, sent))["limits"]
        assert first == {}
        assert says in last["__all__"][0]
        sent["limits-0-DELETE"] = "on"
        assert admin_client.post(ADD_RULE, sent).status_code == 302

    def test_unlimited_twice(self, admin_client: Client) -> None:
        errors = errors_of(admin_client.post(ADD_RULE, rule_form({"unlimited": "on"}, {"unlimited": "on"})))
        assert [len(limit) for limit in errors["limits"]] == [0, 1]

    def test_limits_may_swap_their_windows(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        RuleLimit.objects.filter(tier=None).update(tier=free)
        first, second = rule.limits.all()
        limits = stored(first, second)
        limits[0]["window_seconds"], limits[1]["window_seconds"] = second.window_seconds, first.window_seconds
        assert admin_client.post(page_of(rule), rule_form(*limits, stored=2)).status_code == 302
        found = dict(rule.limits.values_list("pk", "window_seconds"))
        assert found == {first.pk: second.window_seconds, second.pk: first.window_seconds}

    def test_a_deleted_limit_makes_room_for_another(self, admin_client: Client, rule: Rule) -> None:
        limits = stored(*rule.limits.all())
        limits[1]["DELETE"] = "on"
        new = {"quota": "8", "window_seconds": "1"}
        assert admin_client.post(page_of(rule), rule_form(*limits, new, stored=2)).status_code == 302
        assert rule.limits.get(tier=None).quota == 8

    def test_shows_who_may_only_look(self, operator: Callable[..., Client], rule: Rule) -> None:
        response = operator("view_rule", "view_rulelimit").get(page_of(rule))
        assert response.status_code == 200
        assert 'name="_save"' not in shown(response)


class TestList:
    def test_tells_mode_place_and_limits_in_words(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        RuleLimit.objects.filter(tier=None).delete()
        RuleLimit.objects.create(rule=rule, tier=Tier.objects.create(slug="pro", name="Pro", rank=2), unlimited=True)
        page = shown(admin_client.get(RULES))
        assert "free: 100 per minute, sliding window; pro: unlimited" in page
        assert "/api/export/…" in page
        assert ">enforce<" in page

    def test_asks_the_same_queries_however_many_rules(self, admin_client: Client, rule: Rule, free: Tier) -> None:
        admin_client.get(RULES)  # content types, loaded once
        with CaptureQueriesContext(connection) as few:
            admin_client.get(RULES)
        for number in range(15):
            another = Rule.objects.create(slug=f"rule-{number}", name="Another")
            RuleLimit.objects.create(rule=another, tier=free, quota=1, window_seconds=1)
        with CaptureQueriesContext(connection) as many:
            assert shown(admin_client.get(RULES)).count("Another</a>") == 15
        assert len(many) == len(few)

    @pytest.mark.parametrize(
        "query", ["q=export", "mode__exact=enforce", "limits__tier__id__exact={free}", "path_kind__exact=prefix"]
    )
    def test_finds_and_filters(self, admin_client: Client, rule: Rule, free: Tier, query: str) -> None:
        Rule.objects.create(slug="other", name="Other", mode="off")
        response = admin_client.get(f"{RULES}?{query.format(free=free.pk)}")
        assert [found.slug for found in response.context["cl"].result_list] == ["export"]


class TestLeftOut:
    @pytest.fixture(
        params=[
            ("rulelimit", "algorithm", "magic", "is unknown"),
            ("rulelimit", "window_seconds", 0, "above 0"),
            ("rule", "path_kind", "glob", "not a valid choice"),
            ("rule", "methods", '{"GET": 1}', "must be a list"),
            ("rule", "methods", "7", "must be a list"),
            ("rule", "partition_by", "null", "must be a list"),
        ]
    )
    def reason(self, request: pytest.FixtureRequest, rule: Rule) -> str:
        """Spoils the rule by SQL; what is said of it."""
        table, column, value, reason = request.param
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE django_ratelimiter_{table} SET {column} = %s", [value])
        return reason

    def test_the_list_and_the_rules_page_say_why(self, admin_client: Client, rule: Rule, reason: str) -> None:
        good = Rule.objects.create(slug="good", name="Good")
        RuleLimit.objects.create(rule=good, quota=1, window_seconds=60)
        page = shown(admin_client.get(RULES))
        assert "Not in force." in page
        assert reason in page.lower()
        assert "every tier: 1 per minute" in page
        page = shown(admin_client.get(page_of(rule)))
        assert "This rule is not in force" in page
        assert reason in page.lower()
        assert "not in force" not in shown(admin_client.get(page_of(good)))


class TestActions:
    @pytest.mark.parametrize(("action", "mode"), [("switch_off", "off"), ("shadow", "shadow"), ("enforce", "enforce")])
    def test_saves_row_by_row_and_logs(self, admin_client: Client, action: str, mode: str) -> None:
        rules = [Rule.objects.create(slug=each, name=each, mode=each) for each in ("off", "shadow", "enforce")]
        before = number()
        sent = {"action": action, "_selected_action": [rule.pk for rule in rules]}
        response = admin_client.post(RULES, sent, follow=True)
        assert f"2 rules set to {mode}." in shown(response)
        assert set(Rule.objects.values_list("mode", flat=True)) == {mode}
        assert number() == before + 1
        assert RuleSetVersion.objects.get(number=number()).summary == f"Rules set to {mode}"
        entries = LogEntry.objects.order_by("object_id")
        changed = [rule for rule in rules if rule.mode != mode]
        assert {entry.object_id for entry in entries} == {str(rule.pk) for rule in changed}
        assert {(entry.action_flag, entry.get_change_message()) for entry in entries} == {(CHANGE, "Changed Mode.")}

    def test_a_rule_in_that_mode_is_left_alone(self, admin_client: Client, rule: Rule) -> None:
        before = number()
        response = admin_client.post(RULES, {"action": "enforce", "_selected_action": [rule.pk]}, follow=True)
        assert "Nothing changed" in shown(response)
        assert (number(), LogEntry.objects.count()) == (before, 0)

    def test_needs_the_permission_to_change(self, operator: Callable[..., Client], rule: Rule) -> None:
        client = operator("view_rule")
        client.post(RULES, {"action": "switch_off", "_selected_action": [rule.pk]})
        assert Rule.objects.get().mode == "enforce"
        assert "switch_off" not in shown(client.get(RULES))


class TestAssignments:
    def test_an_api_key_is_hashed_and_never_shown(self, admin_client: Client, free: Tier) -> None:
        raw = "secret-key-of-a-customer"
        response = admin_client.post(ADD_ASSIGNMENT, {"tier": free.pk, "api_key": raw, "reason": "asked"})
        assert response.status_code == 302
        assignment = TierAssignment.objects.get()
        assert assignment.api_key_hash == hash_api_key(raw)
        assert assignment.created_by == User.objects.get(username="admin")
        for address in (page_of(assignment), reverse("admin:django_ratelimiter_tierassignment_changelist")):
            page = shown(admin_client.get(address))
            assert raw not in page
            assert hash_api_key(raw) not in page
            assert f"API key {hash_api_key(raw)[:8]}…" in page
        assert raw not in str(list(LogEntry.objects.values_list("object_repr", "change_message")))

    @pytest.mark.parametrize("chosen", [(), ("user", "api_key"), ("user", "group")])
    def test_exactly_one_subject(self, admin_client: Client, free: Tier, chosen: tuple[str, ...]) -> None:
        subjects = {
            "user": User.objects.create(username="ada").pk,
            "group": Group.objects.create(name="staff").pk,
            "api_key": "typed-key",
        }
        sent = {"tier": free.pk} | {name: subjects[name] for name in chosen}
        page = shown(admin_client.post(ADD_ASSIGNMENT, sent))
        assert "Choose exactly one of user, group and API key." in page
        assert "typed-key" not in page

    @pytest.mark.parametrize("subject", ["user", "api_key"])
    def test_a_subject_is_assigned_once(self, admin_client: Client, free: Tier, subject: str) -> None:
        value = User.objects.create(username="ada").pk if subject == "user" else "key"
        sent = {"tier": free.pk, subject: value}
        assert admin_client.post(ADD_ASSIGNMENT, sent).status_code == 302
        response = admin_client.post(ADD_ASSIGNMENT, sent)
        assert "in this tier already" in shown(response)

    def test_the_subject_stays(self, admin_client: Client, free: Tier) -> None:
        assignment = TierAssignment.objects.create(tier=free, api_key_hash=hash_api_key("key"))
        pro = Tier.objects.create(slug="pro", name="Pro")
        sent = {"tier": pro.pk, "reason": "pays now", "api_key": "another", "api_key_hash": "0" * 64, "user": 1}
        assert admin_client.post(page_of(assignment), sent).status_code == 302
        assignment.refresh_from_db()
        assert (assignment.tier, assignment.user, assignment.api_key_hash) == (pro, None, hash_api_key("key"))

    def test_is_found_by_user_and_needs_constant_queries(self, admin_client: Client, free: Tier) -> None:
        address = reverse("admin:django_ratelimiter_tierassignment_changelist")
        TierAssignment.objects.create(tier=free, user=User.objects.create(username="ada"))
        admin_client.get(address)
        with CaptureQueriesContext(connection) as few:
            admin_client.get(address)
        for name in ("bob", "eve"):
            TierAssignment.objects.create(tier=free, user=User.objects.create(username=name))
        with CaptureQueriesContext(connection) as many:
            assert "user eve" in shown(admin_client.get(address))
        assert len(many) == len(few)
        found = admin_client.get(f"{address}?q=ada").context["cl"].result_list
        assert [assignment.user.username for assignment in found] == ["ada"]

    def test_a_user_is_searched_for_where_that_is_possible(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "admin-autocomplete" in shown(admin_client.get(ADD_ASSIGNMENT))
        from django.contrib.admin import site

        monkeypatch.delitem(site._registry, User)
        page = shown(admin_client.get(ADD_ASSIGNMENT))
        assert "admin-autocomplete" not in page
        assert 'name="user"' in page


class TestWords:
    @pytest.mark.parametrize(
        ("limit", "words"),
        [
            (Limit(100, 60), "100 per minute, sliding window"),
            (Limit(1, 1, "fixed_window"), "1 per second, fixed window"),
            (Limit(10_000, 86_400), "10,000 per day, sliding window"),
            (Limit(5, 90), "5 per 90 seconds, sliding window"),
            (Limit(5, 1_209_600), "5 per 2 weeks, sliding window"),
            (Limit(5, Decimal("0.25")), "5 per 0.25 seconds, sliding window"),
            (Limit(10, 60, "token_bucket", burst=20), "10 per minute, token bucket, burst 20"),
            (Limit(10, 3_600, soft_quota=8), "10 per hour, sliding window, soft quota 8"),
        ],
    )
    def test_limits(self, limit: Limit, words: str) -> None:
        assert limit_in_words(limit) == words

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({}, "every request"),
            ({"methods": ["GET", "POST"], "path": "/a/", "path_kind": "exact"}, "GET, POST · /a/"),
            ({"path": "/a/%s", "path_kind": "prefix"}, "/a/%s…"),
            ({"path": "a/<int:pk>/", "path_kind": "route", "scope": "big"}, "route a/<int:pk>/ · scope big"),
            ({"view_name": "api:export"}, "view api:export"),
            ({"methods": {"GET": 1}, "path_kind": "glob"}, "every request"),
        ],
    )
    def test_places(self, values: dict[str, Any], words: str) -> None:
        assert place_in_words(Rule(**values)) == words
