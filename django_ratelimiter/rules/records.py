"""The frozen records that a rule set is made of, and what their fields may hold. No ORM, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from ..engine.limits import Limit
from ..values.failure_policies import FAILURE_POLICIES, FailurePolicy
from ..values.multiplier import multiply_limit

MODES: Final = ("off", "shadow", "enforce")
PATH_KINDS: Final = ("any", "exact", "prefix", "route")
MISSING_PARTITION: Final = ("skip", "ip", "deny")
CHARGE_WHEN: Final = ("any", "success", "failure")

#: What a limit may be given beside quota, window and algorithm; absent or empty = the engine's default.
OPTIONS: Final = ("burst", "soft_quota", "slots", "anchor", "refill", "calendar", "timezone", "anchor_day")


#: The conditions of a rule; "" = a request meets all of them.
Mismatch = Literal["", "method", "path", "view", "scope"]


class Facts(NamedTuple):
    """Facts of a request that rules match. route: the URL pattern's text. scope: named by the caller. Empty = none."""

    method: str
    path: str
    route: str = ""
    view_name: str = ""
    scope: str = ""


class RejectedRule(NamedTuple):
    """A rule that is not in force, and why."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class TierRecord:
    """A tier. default_for: who has it without an assignment: none, anonymous or authenticated."""

    slug: str
    name: str
    rank: int
    default_for: str

    def __str__(self) -> str:
        return self.slug


class LimitRecord(NamedTuple):
    """A limit as a rule has it.

    max_delay: seconds that a synchronous worker may hold an allowed request; for leaky buckets only.
    generation: part of the counters' names; a higher one resets the counters.
    """

    limit: Limit
    max_delay: float = 0.0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A rule with its limits by tier slug; under `None` those of every other tier; an empty tuple = unlimited.

    methods: empty = all; GET brings HEAD with it. partition_by: empty = one counter for everybody. cost: units
    that one request spends. count_refusals: whether refused requests spend, too. charge_when: of which responses
    what was spent is kept: any, success (a status below 400) or failure. sync_interval: seconds for which a process
    counts by itself; negative = for ever, `None` = never.
    """

    slug: str
    name: str
    mode: str
    methods: frozenset[str]
    path: str
    path_kind: str
    view_name: str
    scope: str
    partition_by: tuple[str, ...]
    missing_partition: str
    failure_policy: str
    cost: int
    priority: int
    message: str
    count_refusals: bool
    limits: Mapping[str | None, tuple[LimitRecord, ...]] = field(hash=False)
    charge_when: str = CHARGE_WHEN[0]
    sync_interval: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown failure policy: found during an outage, it would be found too late."""
        if self.failure_policy not in FAILURE_POLICIES:
            raise ValueError(f"failure_policy: {self.failure_policy!r} is unknown.")

    def __str__(self) -> str:
        return self.slug

    @property
    def during_outage(self) -> FailurePolicy:
        """The policy while the engine is out of reach."""
        return FAILURE_POLICIES[self.failure_policy]

    @property
    def depends_on_tier(self) -> bool:
        """True if some tier has limits of its own here."""
        return any(tier is not None for tier in self.limits)

    def limits_for(self, tier: TierRecord | None, multiplier: Decimal = Decimal(1)) -> tuple[LimitRecord, ...]:
        """Return the limits of this tier, else those of every other tier, else none: the rule does not apply to it.

        multiplier: what their numbers are multiplied by. What a request of this rule's cost could pass it still can,
        and what none could pass stays closed.
        """
        slug = tier.slug if tier else None
        records = self.limits[slug] if slug in self.limits else self.limits.get(None, ())
        if multiplier == 1:
            return records
        return tuple(
            record._replace(limit=multiply_limit(record.limit, multiplier, self.cost))
            if self.cost <= record.limit.capacity
            else record
            for record in records
        )

    @property
    def is_off(self) -> bool:
        """Whether it matches no request, whatever its conditions say."""
        return self.mode == "off"

    def mismatch(self, facts: Facts) -> Mismatch:
        """Return the first condition of this rule that a request of these facts does not meet; "" = it matches."""
        methods = self.methods
        if methods and facts.method not in methods:
            return "method"
        kind = self.path_kind
        if kind == "prefix":
            if not facts.path.startswith(self.path):
                return "path"
        elif kind == "exact":
            if facts.path != self.path:
                return "path"
        elif kind == "route" and facts.route != self.path:
            return "path"
        if self.view_name and self.view_name != facts.view_name:
            return "view"
        return "scope" if self.scope and self.scope != facts.scope else ""

    def matches(self, facts: Facts) -> bool:
        """Return whether this rule matches a request of these facts."""
        return not self.mismatch(facts)
