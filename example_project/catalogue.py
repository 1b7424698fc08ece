"""The example's tiers, users, API keys and rules, as plain data.

`manage.py demo_data` stores it in the database, and the demo computes from it what a client must see. This file
does not import the rate limiter, so that errors of the limiter are noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400

FIXED: Final = "fixed_window"
SLIDING: Final = "sliding_window_counter"
EXACT: Final = "sliding_window_log"
BUCKET: Final = "token_bucket"


@dataclass(frozen=True)
class Tier:
    """A class of callers. default_for: "anonymous", "authenticated" or "none"."""

    slug: str
    name: str
    rank: int
    default_for: str = "none"


@dataclass(frozen=True)
class Person:
    """A user who authenticates with a token. tier: the user's own assignment; `None` = none."""

    name: str
    token: str
    tier: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class ApiKey:
    """A key for programs, and the tier it is assigned to."""

    key: str
    tier: str


@dataclass(frozen=True)
class Account:
    """A customer with users, and the tier that it has bought. billing_day: the first day of its months."""

    name: str
    plan: str
    billing_day: int
    people: tuple[str, ...]


@dataclass(frozen=True)
class Limit:
    """`quota` units per `window` seconds; quota 0 = unlimited.

    burst: the capacity of a bucket; `None` = the quota.
    """

    quota: int
    window: int
    algorithm: str
    burst: int | None = None

    @property
    def capacity(self) -> int:
        """The most units that can be used at once."""
        return self.burst or self.quota


UNLIMITED: Final = Limit(0, 0, SLIDING)


@dataclass(frozen=True)
class Rule:
    """A rule. limits: by tier, where `None` = every other tier; it does not apply to a tier that is missing.

    partition_by: what the counters are split by; empty = one counter for all.
    missing: what happens without such a value: "skip" the rule, or count by "ip".
    cost: units of a request.
    """

    slug: str
    name: str
    path: str
    partition_by: tuple[str, ...]
    limits: dict[str | None, tuple[Limit, ...]]
    methods: tuple[str, ...] = ()
    mode: str = "enforce"
    missing: str = "skip"
    failure_policy: str = "local"
    cost: int = 1
    message: str = ""

    def limits_for(self, tier: str) -> tuple[Limit, ...]:
        """Return the limits of a tier under this rule; empty if the rule does not apply to it."""
        return self.limits.get(tier, self.limits.get(None, ()))


TIERS: Final = (
    Tier("anonymous", "Anonymous", 0, "anonymous"),
    Tier("free", "Free", 10, "authenticated"),
    Tier("pro", "Pro", 20),
    Tier("enterprise", "Enterprise", 30),
)

ADMIN: Final = "admin"
#: Public: the example listens only on the loopback address.
PASSWORD: Final = "demo"

GROUPS: Final = {"Pro customers": "pro"}

PEOPLE: Final = (
    Person("nadia", "token-nadia", tier="anonymous"),  # has not confirmed her address yet
    Person("flora", "token-flora"),
    Person("fred", "token-fred"),
    Person("paula", "token-paula", group="Pro customers"),
    Person("erik", "token-erik", tier="enterprise"),
)

ACCOUNTS: Final = (Account("Paula's shop", "pro", 15, ("paula",)), Account("Erik & Co", "enterprise", 1, ("erik",)))

API_KEYS: Final = (
    ApiKey("key-trial", "anonymous"),
    ApiKey("key-free-1", "free"),
    ApiKey("key-free-2", "free"),
    ApiKey("key-pro", "pro"),
    ApiKey("key-enterprise", "enterprise"),
)

RULES: Final = (
    Rule(
        "prices-per-address",
        "Prices, per address",
        "/prices/",
        ("ip",),
        {"anonymous": (Limit(40, HOUR, SLIDING),), None: (Limit(120, HOUR, SLIDING),)},
        message="Sign up for a free key to see more prices.",
    ),
    Rule(
        "orders-per-key",
        "Orders, per API key and day",
        "/orders/",
        ("api_key",),
        {
            "anonymous": (Limit(10, DAY, FIXED),),
            "free": (Limit(40, DAY, FIXED),),
            "pro": (Limit(120, DAY, FIXED),),
            "enterprise": (UNLIMITED,),
        },
        missing="ip",
    ),
    Rule(
        "orders-trial-run",
        "Orders, what a cap for enterprise would do",
        "/orders/",
        ("api_key",),
        {"enterprise": (Limit(100, DAY, FIXED),)},
        mode="shadow",
    ),
    Rule(
        "search-per-user",
        "Search, per user",
        "/api/search/",
        ("user",),
        {
            "anonymous": (Limit(1, MINUTE, BUCKET, burst=15),),
            "free": (Limit(1, MINUTE, BUCKET, burst=30),),
            "pro": (Limit(5, 1, BUCKET, burst=50),),
            "enterprise": (Limit(10, 1, BUCKET, burst=40),),
        },
        missing="ip",
    ),
    Rule(
        "search-per-address",
        "Search, per address of free users",
        "/api/search/",
        ("ip",),
        {"free": (Limit(40, HOUR, SLIDING),)},
    ),
    Rule(
        "export-paced-and-capped",
        "Export, paced and capped",
        "/api/export/",
        ("user",),
        {
            "free": (Limit(1, 1, BUCKET, burst=5), Limit(100, DAY, FIXED)),
            "pro": (Limit(4, 1, BUCKET, burst=10), Limit(40, DAY, FIXED)),
        },
    ),
    Rule(
        "reports-whole-site",
        "Reports, everybody together",
        "/api/reports/",
        (),
        {None: (Limit(500, DAY, FIXED),)},
        cost=5,
    ),
    Rule(
        "sign-in-per-address",
        "Sign-in attempts, per address",
        "/sign-in/",
        ("ip",),
        {None: (Limit(5, 10 * MINUTE, EXACT),)},
        methods=("POST",),
        failure_policy="closed",
        message="Too many attempts. Please wait some minutes.",
    ),
)

#: The demo's traffic leaves it alone: open the page as a user of an account.
CUSTOMER_RULE: Final = Rule(
    "invoices-per-customer",
    "Invoices, per customer and day",
    "/api/invoices/",
    ("customer",),
    {None: (Limit(30, DAY, FIXED),)},
)
