"""`manage.py ratelimit caller`."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command, execute_from_command_line
from django.utils import timezone, translation

from django_ratelimiter import limiter
from django_ratelimiter.identity import digest, hash_api_key
from django_ratelimiter.management import output
from django_ratelimiter.models import AccessEntry, Rule, Tier, TierAssignment
from django_ratelimiter.rules import tiers

from ..making import manage, save
from ..test_unreachable import unreachable
from .test_counters import ask

pytestmark = pytest.mark.django_db

run = partial(manage, "caller")


@pytest.fixture(autouse=True)
def _blocked(add_rule: Callable[..., Rule], user: User, free: Tier) -> None:
    add_rule("export", ["user"], quota=2, algorithm="fixed_window")
    add_rule("org", ["user", "header:X-Org"])
    ask(user, 2, HTTP_X_ORG="acme")


def test_says_it_in_words(user: User) -> None:
    lines = run("--user", "ann").splitlines()
    assert lines[0] == f"user {user.pk} ({digest(f'user:{user.pk}')}): blocked"
    assert lines[1] == "Tier: Free, the default, as no tier is assigned to this caller"
    assert lines[2].startswith("export: 2 per hour, fixed window: 2 of 2 used, 0 left; blocked until ")
    assert lines[3] == "org: needs to know header:X-Org"
    assert "2 of 5 used" in run("--user", str(user.pk), "--known", "header:X-Org=acme")


def test_names_the_last_rejections(user: User, add_rule: Callable[..., Rule]) -> None:
    def last(start: str) -> str:
        [line] = [line for line in run("--user", "ann").splitlines() if line.startswith(start)]
        return line

    ask(user, 3)
    start = digest(f"user:{user.pk}")[:8]
    line = last("Rejected by Export (limit now: 2 per hour, fixed window, free): 3 since ")
    assert re.search(" C[SD]T, now: rejected until ", line)
    assert line.endswith(f" (export#{start})")
    add_rule("trial", ["user"], quota=2, mode="shadow")
    Rule.objects.get(slug="export").delete()
    ask(user, 3)
    assert last("Would be rejected by Trial (limit now: 2 per hour, sliding window, free): 1 since ").endswith(
        f" (trial#{start})"
    )


def test_says_how_often_a_limit_is_multiplied(user: User, free: Tier) -> None:
    end = datetime(2036, 12, 5, tzinfo=UTC)
    TierAssignment.objects.create(user=user, multiplier=Decimal("2.5"), ends_at=end)
    tier = "Tier: Free, the default, as no tier is assigned to this caller, limits times 2.5, until "
    with timezone.override("UTC"):
        assert run("--user", "ann").splitlines()[1] == f"{tier}Dec. 5, 2036, midnight UTC"


def test_says_it_as_json(user: User) -> None:
    found = json.loads(run("--user", str(user.pk), "--json"))
    assert found["blocked"]
    assert found["tier"]["kind"] == "default"
    own = digest(f"user:{user.pk}")
    assert found["counters"][0] | {"blocked_until": "", "full_at": ""} == {
        "name": "export:f3600", "rule": "export", "mode": "enforce", "limit": "2 per hour, fixed window",
        "key": f"{{rl:0}}:export:{own}:f3600", "digest": own, "capacity": 2, "used": 2, "left": 0,
        "full_at": "", "allowed": False, "blocked": True, "blocked_until": "", "never": False,
        "shared": False, "logged": False,
    }  # fmt: skip
    assert found["unread"] == [{"rule": "org", "missing": ["header:X-Org"]}]


def test_rules_for_a_scope_that_no_view_names_stand_apart(
    add_rule: Callable[..., Rule], user: User, settings: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    Rule.objects.all().delete()
    rule = add_rule("nightly", ["user"], quota=1)
    save(rule, scope="nightly")
    with limiter.slot("nightly", partition=f"user:{user.pk}", max_wait=0):
        pass
    found = json.loads(run("--user", "ann", "--json"))
    assert (found["blocked"], found["blocked_scopes"]) == (False, ["nightly"])
    lines = run("--user", "ann").splitlines()
    assert lines[0].endswith(": not blocked")
    assert lines[1] == (
        "Only code that asks for their scope, such as a task or a command, is rejected by these rules now: nightly"
    )
    found = json.loads(run(f"--digest={digest(f'user:{user.pk}')}", "--json"))
    assert (found["blocked"], found["blocked_scopes"]) == (None, []), "its tier is not known, so its limits are not"


def test_a_digest_may_begin_with_a_hyphen(capsys: pytest.CaptureFixture[str]) -> None:
    found = next(found for number in itertools.count(10**6) if (found := digest(f"user:{number}")).startswith("-"))
    execute_from_command_line(["manage.py", "ratelimit", "caller", "--digest", found, "--json"])
    assert json.loads(capsys.readouterr().out)["blocked"] is None


def test_a_reference_leads_to_the_caller_by_its_name(user: User, free: Tier) -> None:
    TierAssignment.objects.create(tier=free, user=user, multiplier=Decimal(2))
    tiers.forget()
    ask(user, 3)
    own = digest(f"user:{user.pk}")
    for name in (("--reference", f"export#{own[:8]}"), (f"--digest={own}",)):
        lines = run(*name, "--known", "header:X-Org=acme").splitlines()
        assert lines == run("--user", "ann", "--known", "header:X-Org=acme").splitlines()
        assert lines[0].startswith(f"user {user.pk} ({own}): ")
        assert lines[1] == "Tier: Free, assigned to the user ann, limits times 2"


def test_says_of_a_digest_without_a_name_only_what_it_tells(
    user: User, add_rule: Callable[..., Rule], settings: Any
) -> None:
    settings.RATELIMITER = {**settings.RATELIMITER, "REVEAL": []}
    add_rule("by_address", ["ip"])
    own = digest(f"user:{user.pk}")
    first, tier, *counters = run(f"--digest={own}").splitlines()
    assert first == f"digest ({own}): whether it is blocked is not known"
    assert tier.startswith("Tier: not known, as only the digest of this caller is known")
    assert [each.partition(":")[0] for each in counters] == ["export"], "no others count this caller"
    found = json.loads(run(f"--digest={digest(f'user:{user.pk}')}", "--json"))
    assert (found["tier"]["kind"], found["tier"]["slug"]) == ("unknown", "")
    assert [each["rule"] for each in found["counters"]] == ["export"]


def test_an_access_entry_counts_first(user: User) -> None:
    AccessEntry.objects.create(kind="user", value=str(user.pk), action="allow", reason="partner")
    lines = run("--user", "ann").splitlines()
    assert lines[0].endswith(": not blocked")
    assert lines[1] == "Access entry: allow until it is deleted. partner"
    with translation.override("de"):
        assert run("--user", "ann").splitlines()[1] == "Zugriffseintrag: erlaubt bis er gelöscht wird. partner"


def test_of_a_key_the_first_line_has_its_name(free: Tier) -> None:
    key = hash_api_key("sk")
    TierAssignment.objects.create(tier=free, api_key_hash=key, reason="shop")
    assert run("--api-key", "sk").startswith(f"api_key shop ({key[:8]}…) ({digest(f'api_key:{key}')}): not blocked")


def test_who_is_nobody_is_an_error() -> None:
    with pytest.raises(CommandError, match="This is not an IP address"):
        run("--ip", "nonsense")
    with pytest.raises(CommandError, match="Unknown identity 'usr'"):
        run("--partition", "usr:42")
    with pytest.raises(CommandError):
        run()


def test_without_redis_nobody_is_called_not_blocked(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    with unreachable(), mock.patch.object(output, "WAIT_SECONDS", 0.0):
        with pytest.raises(CommandError, match="Redis cannot be reached now: "):
            call_command("ratelimit", "caller", "--user", "ann")
        assert capsys.readouterr().out.splitlines()[0].endswith(": whether it is blocked is not known")
        with pytest.raises(CommandError, match="Redis cannot be reached now: "):
            call_command("ratelimit", "caller", "--user", "ann", "--json")
        assert json.loads(capsys.readouterr().out)["blocked"] is None


@pytest.mark.parametrize("option", [("--settings", "tests.settings"), ("--traceback",), ("--no-color",)])
def test_the_options_of_all_commands_may_come_last(option: tuple[str, ...], user: User) -> None:
    assert ": blocked" in run("--user", "ann", *option)


def test_an_access_entry_needs_no_redis(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    AccessEntry.objects.create(kind="user", value=str(user.pk), action="deny")
    with unreachable(), mock.patch.object(output, "WAIT_SECONDS", 0.0), pytest.raises(CommandError):
        call_command("ratelimit", "caller", "--user", "ann")
    assert capsys.readouterr().out.splitlines()[0].endswith(": blocked")


@pytest.mark.parametrize(("answers", "asked"), [([True], 1), ([False, False, True], 3), ([False] * 9, 3)])
def test_a_command_waits_for_a_connection(answers: list[bool], asked: int) -> None:
    left, times = iter(answers), itertools.count(step=0.8)
    with mock.patch.object(output, "_clock", side_effect=times), mock.patch.object(output, "_sleep"):
        assert output.once_connected(lambda: next(left), bool) is answers[asked - 1]
    assert len(list(left)) == len(answers) - asked


def test_says_that_a_caller_has_no_tier(free: Tier, user: User) -> None:
    free.delete()
    assert "Tier: none, as no tier is assigned to this caller, and no tier is the default" in run("--user", "ann")
