"""A caller's page resets counters, and leads to Django's own forms, which are filled in and lead back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ratelimiter.backend import get_engine
from django_ratelimiter.identity import access_entry_for, digest, hash_api_key, identify
from django_ratelimiter.inspection.caller import caller_of
from django_ratelimiter.inspection.grounds import grounds_of
from django_ratelimiter.inspection.references import everybody
from django_ratelimiter.models import AccessEntry, Rule, Tier, TierAssignment
from django_ratelimiter.rules.cache import access_list, latest_rules
from tests.making import make_rule, request_of

from ..pages import ADD_ASSIGNMENT, BrowserForm, shown
from .page import CALLER, ask, links, press, save

pytestmark = pytest.mark.django_db

ADD_ENTRY = reverse("admin:django_ratelimiter_accessentry_add")
ADDRESS = "127.0.0.1"
PAGE = f"{CALLER}?kind=ip&value={ADDRESS}"


@pytest.fixture
def pro() -> Tier:
    return Tier.objects.create(slug="pro", name="Pro", rank=9)


def test_unblocked_and_doubled_until_friday(admin_client: Client, page: str, ann: User, admin_user: User) -> None:
    text = press(admin_client, page)
    assert "Reset 2 counters: export, search. Checked: none of them blocks the caller now." in text
    assert "No rule rejects this caller now." in text
    assert "he called</li>" in text  # the log
    text = save(admin_client, page, "more", reason="a busy week")
    assert "was added successfully" in text
    assert "0 of 6" in text
    assert "limits times 2" in text
    [row] = TierAssignment.objects.all()
    assert (row.tier, row.user, row.multiplier, row.reason, row.created_by) == (None, ann, 2, "a busy week", admin_user)
    ends = timezone.localtime(row.ends_at)
    assert (ends.weekday(), f"{ends:%H:%M}") == (5, "00:00")  # when Friday ends
    assert ask(ann, 6)
    assert not ask(ann)
    found = grounds_of([caller_of("user", f"id:{ann.pk}")], latest_rules())[0].tier
    assert found.multiplied is not None
    assert (found.kind, found.assigned, found.multiplied.pk) == ("default", None, row.pk)
    assert found.multiplied.ends_at == row.ends_at


def test_friday_is_always_to_come(admin_client: Client, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for ahead in range(7):
        today = date(2026, 11, 16) + timedelta(days=ahead)
        with monkeypatch.context() as patch:
            patch.setattr(timezone, "localdate", lambda *_moment, day=today: day)
            forms = links(admin_client, page)
        ends = [
            date.fromisoformat(BrowserForm(shown(admin_client.get(forms[name]))).sent[field][0])
            for name, field in (("more", "ends_at_0"), ("tier", "ends_at_0"), ("deny", "expires_at_0"))
        ]
        assert ends[0] == ends[1]
        assert ends[0].weekday() == 4
        assert 0 < (ends[0] - today).days <= 7
        assert (ends[2] - today).days == 1


def test_a_site_without_tiers_says_it_in_place_of_the_links(admin_client: Client, page: str) -> None:
    assert "Add a default tier" not in shown(admin_client.get(page))
    assert [*links(admin_client, page)] == ["more", "tier", "allow", "deny"]
    Tier.objects.all().delete()
    text = shown(admin_client.get(page))
    assert "Without tiers all callers have the same limits. Add a default tier under Tiers first." in text
    assert [*links(admin_client, page)] == ["allow", "deny"]


def test_denied_then_allowed_again_and_allowed_past_all_rules(admin_client: Client, page: str, ann: User) -> None:
    text = save(admin_client, page, "deny", reason="abuse")
    assert "An access entry rejects every request of this caller until" in text
    assert not ask(ann)
    entry = AccessEntry.objects.get()
    assert (entry.action, entry.kind, entry.value, entry.reason) == ("deny", "user", str(ann.pk), "abuse")
    assert "deny" not in links(admin_client, page)  # its own entry is listed, and is changed or deleted there
    [row] = admin_client.get(page).context["entries"]
    for url in (row["url"], row["end_url"]):
        assert f'<a href="{url}">' in shown(admin_client.get(page))
    sent = BrowserForm(shown(admin_client.get(row["url"]))).sent
    assert admin_client.post(row["url"], {**sent, "reason": "fraud"})["Location"] == page
    assert admin_client.post(row["end_url"], {"post": "yes"})["Location"] == page
    assert "allows this caller past all rules until" in save(admin_client, page, "allow")
    assert ask(ann, 5)


def test_an_assignment_is_changed_and_deleted_from_the_page(admin_client: Client, page: str, pro: Tier) -> None:
    assert "Pro" in save(admin_client, page, "tier", tier=pro.pk)
    [row] = admin_client.get(page).context["assignments"]
    sent = BrowserForm(shown(admin_client.get(row["url"]))).sent
    assert admin_client.post(row["url"], {**sent, "multiplier": "3"})["Location"] == page
    assert TierAssignment.objects.get().multiplier == 3
    assert admin_client.post(row["end_url"], {"post": "yes"})["Location"] == page
    assert not TierAssignment.objects.exists()


def test_an_entry_takes_the_place_of_one_that_has_ended_and_of_no_other(admin_client: Client) -> None:
    old = AccessEntry.objects.create(
        kind="ip", value=ADDRESS, action="allow", reason="old", expires_at=timezone.now() - timedelta(days=1)
    )
    save(admin_client, PAGE, "deny", reason="attack")
    entry = AccessEntry.objects.get()
    assert (entry.pk, entry.action, entry.reason) == (old.pk, "deny", "attack")
    sent = {"action": "allow", "ip": ADDRESS}
    assert "This caller already has an entry" in shown(admin_client.post(ADD_ENTRY, sent))


def test_an_entry_of_a_network_is_no_reason_to_hide_the_links(admin_client: Client) -> None:
    AccessEntry.objects.create(action="deny", kind="ip", value="127.0.0.0/8")
    assert "allows this caller past all rules until" in save(admin_client, PAGE, "allow")


@pytest.mark.parametrize(
    ("kind", "value", "partition", "field"),
    [("ip", "192.0.2.7", "ip:192.0.2.7", ("ip", "192.0.2.7")),
     ("partition", "header:X-Org=acme", "header:X-Org:acme", ("digest", f"header:X-Org:{digest('header:X-Org:acme')}")),
     ("api_key", "s3cret", "", ("api_key", hash_api_key("s3cret")))],
)  # fmt: skip
def test_every_kind_of_caller_is_filled_in(
    admin_client: Client, pro: Tier, kind: str, value: str, partition: str, field: tuple[str, str]
) -> None:
    page = str(admin_client.post(CALLER, {"kind": kind, "value": value})["Location"])
    save(admin_client, page, "tier", tier=pro.pk)
    row = TierAssignment.objects.get()
    assert (row.partition, row.api_key_hash) == (partition, field[1] if kind == "api_key" else "")
    save(admin_client, page, "deny")
    entry = AccessEntry.objects.get()
    assert (entry.kind, entry.value) == field
    assert admin_client.get(page).context["report"].access.action == "deny"


@pytest.mark.parametrize("typed", ["sha256:1a2b", f"sha256:{'A' * 64}", "a" * 64])
def test_a_key_that_only_looks_like_a_hash_is_a_key(admin_client: Client, typed: str) -> None:
    """A hash is marked and complete: a key of 64 hexadecimal digits is one as well."""
    admin_client.post(ADD_ENTRY, {"action": "deny", "api_key": typed})
    assert AccessEntry.objects.get().value == hash_api_key(typed)


def test_a_hash_is_shown_in_the_field_and_a_typed_key_never(admin_client: Client) -> None:
    hashed = hash_api_key("s3cret")
    assert f'value="sha256:{hashed}"' in shown(admin_client.get(f"{ADD_ENTRY}?api_key=sha256:{hashed}"))
    assert "s3cret" not in shown(admin_client.post(ADD_ENTRY, {"action": "deny", "api_key": "s3cret", "ip": "x"}))
    assert "s3cret" not in shown(admin_client.get(f"{ADD_ENTRY}?api_key=s3cret"))


@pytest.mark.parametrize(
    ("counted_by", "value", "rule"),
    [("ip", "ip:127.0.0.1", "a"), ("user or ip", "ip:127.0.0.1", "b"), ("ip or user", "ip:127.0.0.1", ""),
     ("user|ip", "user:7|ip:127.0.0.1", "c")],
)  # fmt: skip
def test_whom_only_a_list_knows_can_be_denied_and_allowed(
    admin_client: Client, settings: Any, counted_by: str, value: str, rule: str
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    rules = {"a": (["ip"], "skip"), "b": (["user"], "ip"), "c": (["user", "ip"], "skip")}
    for slug, (by, missing) in rules.items():
        if slug == rule or (not rule and slug != "c"):
            make_rule(slug, 1, partition_by=by, missing_partition=missing)
    page = f"{CALLER}?digest={digest(value)}" + (f"&rule={rule}" if rule else "")
    request = request_of(User(pk=7) if counted_by == "user|ip" else AnonymousUser())
    for action in ("deny", "allow"):
        save(admin_client, page, action)
        entry = access_entry_for(access_list(), identify(request))
        assert entry
        assert (entry.action, entry.kind, entry.value) == (action, "digest", f"{counted_by}:{digest(value)}")
        response = admin_client.get(page)
        assert response.context["report"].access.action == action
        assert not {"deny", "allow"} & set(links(admin_client, page))
        [row] = response.context["entries"]
        assert f'<a href="{row["end_url"]}">' in shown(response)
        admin_client.post(row["end_url"], {"post": "yes"})


@pytest.mark.parametrize("rule", ["a", ""])
def test_whom_only_a_list_knows_can_be_allowed_more(
    admin_client: Client, settings: Any, free: Tier, pro: Tier, rule: str
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    Tier.objects.filter(pk=free.pk).update(default_for="anonymous")
    make_rule("a", 1, partition_by=["ip"])
    who = digest(f"ip:{ADDRESS}")
    page = f"{CALLER}?digest={who}" + (f"&rule={rule}" if rule else "")
    request = request_of(AnonymousUser())
    for act, fields, found in (("more", {"multiplier": "3"}, ("free", 3)), ("tier", {"tier": pro.pk}, ("pro", 3))):
        save(admin_client, page, act, **fields)
        granted = identify(request).entitlement(latest_rules())
        assert (str(granted.tier), granted.multiplier) == found
    shown_as = grounds_of([caller_of("ip", ADDRESS)], latest_rules())[0]
    assert (str(shown_as.entitlement.tier), shown_as.entitlement.multiplier) == ("pro", 3)
    assert {row.partition for row in shown_as.assignments} == {f"#ip:{who}"}
    request.META["REMOTE_ADDR"] = "192.0.2.7"
    assert identify(request).entitlement(latest_rules()).multiplier == 1


@pytest.mark.parametrize("query", [f"digest={everybody()}", "digest=" + "a" * 22 + "&rule=code:shop.order",
                                   "kind=user&value=id:4711"])  # fmt: skip
def test_there_is_no_link_for_whom_no_row_can_name(admin_client: Client, rule: Rule, free: Tier, query: str) -> None:
    assert links(admin_client, f"{CALLER}?{query}") == {}


@pytest.mark.parametrize(
    ("permissions", "leads_to"),
    [(["view_tierassignment"], []), (["unblock_caller"], []),
     (["view_tierassignment", "add_tierassignment"], ["more", "tier"]),
     (["unblock_caller", "add_accessentry"], ["allow", "deny"])],
)  # fmt: skip
def test_who_acts_needs_the_permission_to_add_that_row(
    operator: Callable[..., Client], page: str, permissions: list[str], leads_to: list[str]
) -> None:
    client = operator(*permissions)
    assert [*links(client, page)] == leads_to
    for name in leads_to[:1]:
        save(client, page, name)  # and comes back, also without the permission to view the list of these rows
    for name, url in (("more", ADD_ASSIGNMENT), ("deny", ADD_ENTRY)):
        assert client.get(url).status_code == (200 if name in leads_to else 403)


def test_who_may_not_see_callers_is_not_sent_to_their_page(operator: Callable[..., Client]) -> None:
    client = operator("add_accessentry", "view_accessentry")
    back = client.post(f"{ADD_ENTRY}?_caller=kind%3Dip", {"action": "deny", "ip": ADDRESS})["Location"]
    assert back == reverse("admin:django_ratelimiter_accessentry_changelist")


@pytest.mark.parametrize("query", ["//evil.example", "https://evil.example", "\r\nSet-Cookie: a=b", "\0", "@a.example"])
def test_a_form_leads_back_to_no_other_page(admin_client: Client, query: str) -> None:
    response = admin_client.post(f"{ADD_ENTRY}?_caller={quote(query)}", {"action": "deny", "ip": ADDRESS})
    assert response.status_code == 302
    assert urlsplit(response["Location"])[:3] == ("", "", CALLER)


@pytest.mark.parametrize("add", [ADD_ASSIGNMENT, ADD_ENTRY])
@pytest.mark.parametrize("value", ["", "x", "2030", "2030-13-41", "2030-01-02", "2030-01-02T18:30", "T", "9" * 30,
                                   "2030-01-02 18:30:00+02:00", "%00", "1e400"])  # fmt: skip
def test_no_value_in_the_address_of_a_form_is_an_error(admin_client: Client, add: str, value: str) -> None:
    names = ("starts_at", "ends_at", "expires_at", "multiplier", "anchor_day", "action", "api_key", "_caller")
    for ends in (("",), ("_0", "_1")):
        query = "&".join(f"{name}{end}={value}" for name in (*names, "user", "group", "tier") for end in ends)
        assert admin_client.get(f"{add}?{query}").status_code == 200


@pytest.mark.parametrize(
    ("query", "day", "hour"),
    [("expires_at=2030-01-02", "2030-01-02", ""), ("expires_at=2030-01-02T18:30", "2030-01-02", "18:30"),
     ("expires_at=2030-01-02+18:30", "2030-01-02", "18:30"), ("expires_at_0=2030-01-02", "2030-01-02", ""),
     ("expires_at_0=2030-01-02&expires_at_1=18:30", "2030-01-02", "18:30"), ("expires_at=soon", "soon", "")],
)  # fmt: skip
def test_a_date_in_the_address_of_a_form_is_filled_in(admin_client: Client, query: str, day: str, hour: str) -> None:
    url = f"{ADD_ENTRY}?{query}&ip={ADDRESS}"
    sent = BrowserForm(shown(admin_client.get(url))).sent
    assert (sent["expires_at_0"], sent["expires_at_1"]) == ([day], [hour])
    response = admin_client.post(url, sent)
    if day == "soon":
        assert "Enter a valid date." in shown(response)
    else:
        expected = datetime.fromisoformat(f"{day} {hour or '00:00'}") + timedelta(days=not hour)
        assert timezone.localtime(AccessEntry.objects.get().expires_at).replace(tzinfo=None) == expected


@pytest.mark.parametrize("sent", [{"reason": ""}, {"reason": " "}, {"reset": "nothing:f60"}])
def test_what_is_wrong_is_said_and_resets_nothing(admin_client: Client, page: str, sent: dict[str, str]) -> None:
    response = admin_client.post(page, {"reset": "", "reason": "he called", **sent}, follow=True)
    assert "Nothing was changed." in shown(response)
    assert "3 of 3" in shown(response)
    assert not LogEntry.objects.exists()


def test_one_counter_is_reset_by_the_button_beside_it(admin_client: Client, page: str) -> None:
    assert 'name="reset" value="search:f3600"' in shown(admin_client.get(page))
    text = press(admin_client, page, "search:f3600")
    assert "Reset 1 counter: search." in text
    assert "3 of 3" in text


@pytest.mark.django_db(transaction=True)
def test_the_engine_is_called_outside_transactions(
    admin_client: Client, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ATOMIC_REQUESTS would open one for the whole request."""
    reset, open_now = get_engine().reset, []
    monkeypatch.setattr(
        get_engine(), "reset", lambda charges: open_now.append(connection.in_atomic_block) or reset(charges)
    )
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    press(admin_client, page)
    assert open_now == [False]
