"""Data about a caller ends with the user, and `manage.py ratelimit forget` removes it and says what stays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, ManagementUtility, call_command

from django_ratelimiter.identity import digest
from django_ratelimiter.models import AccessEntry, CallerUsage, Rule, Tier, TierAssignment, TopPartition, UsageSample
from django_ratelimiter.rules import tiers
from django_ratelimiter.rules.stored import storage

from ..making import manage
from ..test_unreachable import unreachable
from .test_counters import ask

pytestmark = pytest.mark.django_db


def forget(*caller: str) -> str:
    return manage("forget", *caller)


@pytest.fixture
def stored(user: User, pro: Tier) -> str:
    """Rows of this user and of the next. Returns the user's key."""
    other = User.objects.create_user("bob")
    AccessEntry.objects.create(kind="ip", value="192.0.2.7", action="deny")
    for pk in (user.pk, other.pk):
        AccessEntry.objects.create(kind="user", value=str(pk), action="deny")
        TierAssignment.objects.create(tier=pro, user_id=pk)
        for partition in (f"user:{pk}", f"header:X-Org:acme|user:{pk}"):
            TierAssignment.objects.create(tier=pro, partition=partition)
        place = {"rule_slug": "export", "minute": datetime(2026, 11, 27, tzinfo=UTC), "count": 1}
        UsageSample.objects.create(partition_hash=digest(f"user:{pk}"), **place)
        start = {"rule_slug": "export", "granularity": "day", "start": place["minute"]}
        TopPartition.objects.create(partition=digest(f"user:{pk}"), **start)
    return str(user.pk)


def rows() -> list[int]:
    return [model.objects.count() for model in (AccessEntry, TierAssignment, TopPartition, UsageSample)]


def test_the_command_removes_what_it_can_and_says_what_stays(
    stored: str, user: User, add_rule: Callable[..., Rule]
) -> None:
    add_rule("export", ["user"], quota=1, algorithm="fixed_window")
    add_rule("org", ["user", "header:X-Org"])
    AccessEntry.objects.filter(value=stored).update(action="allow", kind="api_key")  # the caller must reach the rules
    ask(user, 2, HTTP_X_ORG="acme")
    AccessEntry.objects.filter(value=stored).update(kind="user")
    assert forget(f"user:{stored}").splitlines() == [
        f"user {stored}: removed",
        "  access entries: 1",
        "  tier assignments: 3",
        "  top partitions: 1",
        "  usage samples: 1",
        "  counters: 1 (export)",
        "  the name in recent rejections in Redis",
        "What stays, and for how long:",
        "  counters of rules that also count by other values (org): an hour at most",
        "  recent rejections in Redis, by digest: a day",
        "  usage by digest, of other values too or not collected yet: 8 days (samples), 100 days (hours)",
    ]
    assert rows() == [2, 3, 1, 1]
    tiers.forget()
    storage.forget_entries()
    assert ask(user).allowed
    assert forget("ip:192.0.2.4").partition("\n")[0].endswith("): nothing was stored")


def test_without_redis_the_rows_are_removed_and_the_rest_is_said(
    stored: str, add_rule: Callable[..., Rule], capsys: pytest.CaptureFixture[str]
) -> None:
    add_rule("export", ["user"])
    unknown = "  not known: Redis could not be asked, so counters and names may be stored there"
    with unreachable(), pytest.raises(CommandError, match="Run this again"):
        call_command("ratelimit", "forget", f"user:{stored}")
    assert rows() == [2, 3, 1, 1]
    first, *others = capsys.readouterr().out.splitlines()
    assert (first, unknown in others) == (f"user {stored}: removed from the database alone", True)
    with unreachable(), pytest.raises(CommandError, match="Run this again"):
        call_command("ratelimit", "forget", "ip:192.0.2.4")
    first, second, *_others = capsys.readouterr().out.splitlines()
    assert (first.endswith("): nothing was removed"), second) == (True, unknown)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("ip:192.0.2.7", "ip:192.0.2.7 (address "),
        ("header:X-Org=acme", "header:X-Org=acme (partition "),
        ("api_key:sk-live-0123456789abcdef", "api_key:sk-l… (API key "),
        ("session:0123456789abcdef", "partition "),
        ("header:Authorization=s3cret", "partition "),
    ],
)
def test_names_what_was_typed_without_its_secrets(typed: str, shown: str) -> None:
    assert forget(typed).startswith(shown)


@pytest.mark.parametrize("key", ["nobody", "4711", "name:nobody"])
def test_a_user_that_is_not_known_is_an_error(key: str) -> None:
    with pytest.raises(CommandError, match=r"There is no such user|No user has this login name"):
        forget(f"user:{key}")


@pytest.mark.parametrize("caller", [["ip:192.0.2.7"], ["--ip", "192.0.2.7"], ["--partition", "ip:192.0.2.7"]])
@pytest.mark.parametrize("subcommand", ["caller", "forget"])
def test_both_subcommands_name_a_caller_in_the_same_ways(subcommand: str, caller: list[str]) -> None:
    assert digest("ip:192.0.2.7")[:8] in manage(subcommand, *caller)


@pytest.mark.parametrize("subcommand", ["caller", "forget"])
@pytest.mark.parametrize("caller", [[], ["ip:192.0.2.7", "--ip", "192.0.2.7"], ["--ip", ""], ["nonsense"]])
def test_a_caller_must_be_named_once(subcommand: str, caller: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("ratelimit", subcommand, *caller)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["forget", "--partion", "x"], "forget: error: unrecognized arguments: --partion. Did you mean --partition?"),
        (["caller", "user:1", "--knwon=x"], "caller: error: unrecognized arguments: --knwon=x. Did you mean --known?"),
        (["about", "--rubbish"], "about: error: unrecognized arguments: --rubbish\n"),
    ],
)
def test_an_unknown_option_is_told_with_the_usage_of_the_subcommand(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        ManagementUtility(["manage.py", "ratelimit", *arguments]).execute()
    shown = capsys.readouterr().err
    assert f"usage: manage.py ratelimit {arguments[0]} " in shown
    assert says in shown


def test_the_command_removes_the_exact_usage_of_a_caller(user: User) -> None:
    rows_of_callers = [("user", str(user.pk)), ("ip", str(user.pk)), ("user", "99"), ("", digest(f"user:{user.pk}"))]
    for identity, value in rows_of_callers:
        hour = datetime(2026, 11, 27, tzinfo=UTC)
        CallerUsage.objects.create(rule_slug="export", identity=identity, value=value, hour=hour)
    assert "usage of callers: 2" in forget(f"user:{user.pk}")
    assert sorted(CallerUsage.objects.values_list("identity", "value")) == [("ip", str(user.pk)), ("user", "99")]
