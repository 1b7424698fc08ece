"""The operator of the site: a process that edits a rule and collects usage again and again, until it is ended.

`python -m tests.soak.operator SECONDS make` makes the database and the rules, and ends; without `make` it operates.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from itertools import count

import django

#: The algorithm, the failure policy and further fields of the rule for /items/1/, /items/2/ …
RULES = (
    ("sliding_window_counter", "local", {}),
    ("token_bucket", "open", {}),
    ("gcra", "closed", {}),
    ("fixed_window", "open", {"sync_interval_ms": 1_000}),
    ("sliding_window_log", "open", {}),
    ("leaky_bucket", "open", {}),
    ("sliding_window_slots", "open", {"partition_by": []}),
    ("concurrency", "open", {}),
)
QUOTA = 5


def make() -> None:
    """Make the tables and the rules."""
    from django.core.management import call_command

    from django_ratelimiter.models import Rule, RuleLimit
    from django_ratelimiter.rules import cache

    call_command("migrate", verbosity=0)
    with cache.editing(summary="Rules for the load test"):
        for number, (algorithm, policy, fields) in enumerate(RULES, 1):
            named = {"slug": f"items-{number}", "name": f"items-{number}", "mode": "enforce", "failure_policy": policy}
            matched = {"path": f"/items/{number}/", "path_kind": "exact", "partition_by": ["ip"]}
            rule = Rule.objects.create(**named | matched | fields)
            RuleLimit.objects.create(rule=rule, algorithm=algorithm, quota=QUOTA, window_seconds=60)


def operate(pause: float) -> None:
    """Edit and collect."""
    from django.core.management import CommandError, call_command

    from django_ratelimiter.models import RuleLimit
    from django_ratelimiter.rules import cache

    for number in count():
        with cache.editing(summary=f"Edit {number}"):
            limit = RuleLimit.objects.order_by("pk")[number % len(RULES)]
            limit.quota = QUOTA + number % 3
            limit.save()
        with suppress(CommandError):  # a node is away: what it holds is collected the next time
            call_command("ratelimit", "collect", verbosity=0)
        time.sleep(pause)


if __name__ == "__main__":
    django.setup()
    make() if sys.argv[2:] else operate(float(sys.argv[1]))
