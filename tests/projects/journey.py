"""A project's way with the app, from the first rule to the last report. Also a program: it makes its own database.

PROJECT: settings that differ from those of the tests, see `tests.projects.settings`. It prints what it has found.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import django

#: Requests are sent at this many seconds before now: usage is collected once its minute is over. That is at five past a
#: whole hour, when no zone has had its midnight since: a UTC hour's callers are told of the day that it begins in.
AGO = 600 + (int(time.time()) - 900) % 3_600
TABLES = ("totals", "series", "top")
RULE_PK = 1_234  # with a thousands separator it would not be found


class Journey:
    """One traveller: an operator who is logged in, and a visitor who is not."""

    def __init__(self) -> None:
        from django.conf import settings
        from django.contrib.auth import get_user_model
        from django.contrib.auth.models import Group
        from django.test import Client

        self.users = get_user_model()
        name = self.users.USERNAME_FIELD
        self.ada, self.bob = (
            self.users._default_manager.create_superuser(**{name: f"{each}@example.org"}, password="x")
            for each in ("ada", "bob")
        )
        self.crew = Group.objects.create(name="crew")
        self.bob.groups.add(self.crew)
        self.operator, self.visitor = Client(), Client()
        self.operator.force_login(self.ada)
        self.engine = timed_engine()
        self.is_beside_users = "limits" not in settings.DATABASES

    def travel(self) -> None:
        """All of it."""
        self.edit()
        self.meet()
        self.collect()
        self.read_reports()
        self.read_api()
        self.prune()
        self.leave()

    def address(self, model: str, page: str, *args: object) -> str:
        from django.urls import reverse

        return reverse(f"admin:django_ratelimiter_{model}_{page}", args=args)

    def post(self, address: str, **fields: Any) -> Any:
        """Send a form of the admin that is to be accepted."""
        response = self.operator.post(address, fields)
        assert response.status_code == 302, response.context["errors"]
        return response

    def see(self, address: str, *texts: str) -> str:
        """Read a page, which says all this."""
        response = self.operator.get(address)
        assert response.status_code == 200, (address, response.status_code)
        page: str = response.content.decode()
        for text in texts:
            assert text in page, (address, text, page)
        return page

    def edit(self) -> None:
        """Make a tier, a rule with a calendar limit and a window, a dated assignment, and an entry with an end."""
        from django_ratelimiter.models import AccessEntry, Rule, Tier, TierAssignment
        from tests.admin.pages import rule_form

        self.post(self.address("tier", "add"), name="Gold", slug="gold", rank="1000", default_for="none")
        tier = Tier.objects.get()
        Rule.objects.create(pk=RULE_PK, slug="hello", name="Hello", mode="enforce")  # its key has four digits
        limits = {"quota": "3", "calendar": "day", "algorithm": "fixed_window"}, {"quota": "2000", "window_seconds": 60}
        form = rule_form(*limits, name="Hello", slug="hello", path="/hello/", partition_by=["ip"])
        self.post(self.address("rule", "change", RULE_PK), **form)
        rule = Rule.objects.get()
        assert [limit.quota for limit in rule.limits.order_by("quota")] == [3, 2000]
        self.see(self.address("rule", "changelist"), f"/rule/{RULE_PK}/change/")
        self.see(self.address("rule", "change", RULE_PK), 'value="2000"')
        self.see(self.address("rule", "history", RULE_PK), "ada@example.org")
        dates = {"starts_at_0": day(-1), "starts_at_1": "12:00:00", "ends_at_0": day(1), "ends_at_1": "12:00:00"}
        self.assign(user=self.ada, tier=tier.pk, multiplier="2", reason="", **dates)
        assignment = TierAssignment.objects.get()
        known = (self.ada, self.ada) if self.is_beside_users else (None, None)
        assert (assignment.user, assignment.created_by) == known
        ada = "ada@example.org" if self.is_beside_users else assignment.partition
        assert assignment.ends_at - assignment.starts_at >= timedelta(hours=47)
        self.see(self.address("tierassignment", "changelist"), ada, "Gold")
        self.see(self.address("tierassignment", "changelist") + f"?q={ada}", ada)
        self.see(self.address("tierassignment", "change", assignment.pk), ada)
        self.assign(group=self.crew, tier=tier.pk, multiplier="3", reason="")
        self.see(self.address("tierassignment", "changelist") + "?q=crew")
        ends = {"expires_at_0": day(1), "expires_at_1": "12:00:00"}
        self.post(self.address("accessentry", "add"), action="deny", ip="192.0.2.9", reason="", **ends)
        self.post(self.address("accessentry", "add"), action="deny", user="bob@example.org", reason="", **ends)
        assert AccessEntry.objects.get(kind="user").value == str(self.bob.pk)
        AccessEntry.objects.create(kind="ip", value="192.0.2.8", expires_at=moment(-timedelta(hours=1)))
        self.see(self.address("accessentry", "changelist"), "192.0.2.9", "192.0.2.8")

    def assign(self, user: Any = None, group: Any = None, **fields: Any) -> None:
        """Assign somebody; in another database as a partition, as the form says. The group has one member, bob."""
        address, subject = self.address("tierassignment", "add"), {"user": user} if user else {"group": group}
        people = {name: person.pk for name, person in subject.items()}
        if self.is_beside_users:
            self.post(address, **people, **fields)
            return
        response = self.operator.post(address, people | fields)
        assert "in another database" in response.content.decode()
        self.post(address, partition=f"user:{(user or self.bob).pk}", **fields)

    def meet(self) -> None:
        """Send requests: by a stranger, by somebody whose quota is doubled, by one who is rejected and one who was."""
        from django.test import Client

        from django_ratelimiter.rules import cache, tiers
        from django_ratelimiter.rules.stored import storage

        tiers.forget()
        storage.forget_entries()
        cache._mark_outdated()
        assert [self.visitor.get("/hello/").status_code for _ in range(5)] == [200] * 3 + [429] * 2
        ada = Client(REMOTE_ADDR="192.0.2.1")
        ada.force_login(self.ada)
        assert [ada.get("/hello/").status_code for _ in range(8)] == [200] * 6 + [429] * 2
        key = str(self.bob.pk)
        partition = f"user:{key}"
        of_bob = tiers.entitlement_for(
            cache.current_rules(), key, None, lambda names: partition if names == ("user",) else None
        )
        assert of_bob.tier is not None
        assert (of_bob.tier.slug, of_bob.multiplier) == ("gold", 3)
        assert Client(REMOTE_ADDR="192.0.2.9").get("/hello/").status_code == 403
        assert Client(REMOTE_ADDR="192.0.2.8").get("/hello/").status_code == 200

    def collect(self) -> None:
        """Collect, twice: the second time there is nothing."""
        from django_ratelimiter.models import TopPartition, UsageBucket

        assert " 14 " in command("collect")
        assert " 14 " not in command("collect")
        rows = UsageBucket.objects.filter(rule_slug="hello", granularity="day")
        assert sum(row.allowed for row in rows) == 10
        tops = TopPartition.objects.filter(rule_slug="hello", granularity="hour")
        assert sorted((row.allowed, row.rejected) for row in tops) == [(1, 0), (3, 2), (6, 2)]

    def read_reports(self) -> None:
        """Read each page and each file of the reports."""
        base = self.address("usagebucket", "changelist")
        for query in ("", "?period=1h", "?period=7d"):
            self.see(f"{base}{query}")
            self.see(f"{base}rule/?rule=hello&{query[1:]}", "Hello")
        self.see(base, "Hello")
        for table in TABLES:
            rule = "&rule=hello" if table == "top" else ""
            rows = list(csv.DictReader(io.StringIO(self.see(f"{base}{table}.csv?period=7d{rule}"))))
            assert rows, table
            if table in ("totals", "series"):
                assert sum(int(row["allowed"]) for row in rows) == 10

    def read_api(self) -> None:
        """Read one's own limits by the API."""
        own = self.operator.get("/limits/me/").json()
        assert own["tier"]["slug"] == "gold"
        assert sorted(limit["quota"] for limit in own["limits"]) == [6, 4_000]

    def prune(self) -> None:
        """Delete what is old, and nothing else."""
        from django_ratelimiter.models import UsageBucket

        before = UsageBucket.objects.filter(rule_slug="hello").count()
        UsageBucket.objects.create(rule_slug="old", start=moment(-timedelta(days=3_000)))
        command("collect")
        assert UsageBucket.objects.filter(rule_slug="hello").count() == before
        assert not UsageBucket.objects.filter(rule_slug="old").exists()

    def leave(self) -> None:
        """Stop and resume all enforcement, delete the rule, and the one who made it."""
        from django_ratelimiter.models import RuleSetVersion, TierAssignment
        from django_ratelimiter.rules.stored import storage

        command("off")
        assert not storage.enforcement_enabled()
        command("on")
        self.post(self.address("rule", "delete", RULE_PK), post="yes")
        authors = [version.author for version in RuleSetVersion.objects.all() if version.author]
        assert authors == ([self.ada] * 3 if self.is_beside_users else [])
        author = self.ada if self.is_beside_users else None
        assert [assignment.created_by for assignment in TierAssignment.objects.all()] == [author] * 2
        self.ada.delete()
        assert not RuleSetVersion.objects.filter(author_id__isnull=False).exists()
        assert not TierAssignment.objects.filter(created_by_id__isnull=False).exists()
        assert TierAssignment.objects.get().multiplier == 3
        (self.crew if self.is_beside_users else self.bob).delete()
        assert not TierAssignment.objects.exists()


def day(offset: int) -> str:
    """A day from now, by the clock of the project, as forms take it in every language."""
    from django.utils import timezone

    then = moment(timedelta(days=offset))
    return f"{timezone.localtime(then) if timezone.is_aware(then) else then:%Y-%m-%d}"


def moment(offset: timedelta) -> datetime:
    """So much later than now, as the project's models keep it."""
    from django.utils import timezone

    return timezone.now() + offset


def command(action: str) -> str:
    """What `manage.py ratelimit` prints."""
    from django.core.management import call_command

    said = io.StringIO()
    call_command("ratelimit", action, stdout=said, stderr=said)
    return said.getvalue()


def timed_engine() -> Any:
    """The project's engine, for whose decisions it is AGO seconds ago."""
    from django_ratelimiter.backend import get_engine

    engine: Any = get_engine().engine  # type: ignore[attr-defined]
    call, then_us = engine._call, int((time.time() - AGO) * 1e6)

    def call_then(mode: Any, charges: Any, receipts: Any, version: Any, now_us: Any, *given: Any) -> Any:
        return call(mode, charges, receipts, version, then_us, *given)

    engine._call = call_then
    return engine


@contextmanager
def databases() -> Iterator[None]:
    """Django, with databases that are made for this block."""
    django.setup()
    from django.test.utils import setup_databases, setup_test_environment, teardown_databases

    setup_test_environment()
    made = setup_databases(verbosity=0, interactive=False, serialized_aliases=[])
    try:
        yield
    finally:
        teardown_databases(made, verbosity=0)


if __name__ == "__main__":
    with databases():
        Journey().travel()
    print("arrived")
