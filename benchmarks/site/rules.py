"""Our rules, as an operator would make them in the admin: `python -m benchmarks.site.rules` creates the database.

Each kind of rules has its own: see `settings.KIND`.
"""

from __future__ import annotations

import os
from typing import Final

import django

from ..contest import HOUR, QUOTA
from .settings import TIERS

DAY: Final = 86_400
KEY: Final = "a-key-that-is-known"
#: A quota that no caller reaches.
PLENTY: Final = 100_000_000

#: Views of whose rules units are fetched in advance, and the milliseconds for which they are kept.
FETCHED: Final = {"fetched-one": 200}

#: Names of scopes among the views.
SCOPES: Final = ("scope",)

#: View: for each of its rules the identity, the quota, the seconds of its window, and the algorithm.
RULES: Final = {
    "one": [(["ip"], QUOTA, HOUR, "sliding_window_counter")],
    "minute": [(["ip"], QUOTA, 60, "sliding_window_counter")],
    "three": [
        (["ip"], QUOTA, HOUR, "sliding_window_counter"),
        (["ip"], PLENTY, DAY, "token_bucket"),
        ([], PLENTY, HOUR, "fixed_window"),
    ],
    "scope": [(["ip"], QUOTA, HOUR, "sliding_window_counter")],
    "by-user": [(["user"], QUOTA, HOUR, "sliding_window_counter")],
    "by-address-and-user": [
        (["ip"], PLENTY, HOUR, "sliding_window_counter"),
        (["user"], QUOTA, HOUR, "sliding_window_counter"),
    ],
    "refused": [
        (["ip"], 1, DAY, "sliding_window_counter"),
        (["ip"], PLENTY, DAY, "token_bucket"),
        ([], PLENTY, HOUR, "fixed_window"),
    ],
    "fetched-one": [(["ip"], PLENTY, HOUR, "sliding_window_counter")],
    "known": [
        (["user"], QUOTA, HOUR, "sliding_window_counter"),
        (["api_key"], PLENTY, HOUR, "sliding_window_counter"),
        (["ip"], PLENTY, HOUR, "sliding_window_counter"),
    ],
}


def make_tier() -> None:
    """Create a tier, for holders of the API key."""
    from django_ratelimiter.identity import hash_api_key
    from django_ratelimiter.models import Tier, TierAssignment
    from django_ratelimiter.rules.cache import editing

    with editing(summary="The benchmark's tier"):
        tier = Tier.objects.create(slug="pro", name="Pro", rank=1)
        TierAssignment.objects.create(tier=tier, api_key_hash=hash_api_key(KEY))


def make_rules() -> None:
    """Fill the database."""
    from django_ratelimiter.models import Rule, RuleLimit
    from django_ratelimiter.rules.cache import editing

    with editing(summary="The benchmark's rules"):
        for view, rules in RULES.items():
            for number, (partition_by, quota, seconds, algorithm) in enumerate(rules):
                slug = f"{view}-{number}"
                rule = Rule.objects.create(
                    slug=slug,
                    name=slug,
                    mode="enforce",
                    view_name="" if view in SCOPES else view,
                    scope=view if view in SCOPES else "",
                    partition_by=partition_by,
                    sync_interval_ms=FETCHED.get(view),
                )
                RuleLimit.objects.create(rule=rule, quota=quota, window_seconds=seconds, algorithm=algorithm)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.site.settings")
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    make_rules()
    if TIERS:
        make_tier()


if __name__ == "__main__":
    main()
