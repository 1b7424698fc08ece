"""The immutable records of a rule set, and the allowed values of their fields. No ORM, no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ..engine.calendars import Anchor
from ..engine.limits import Limit
from ..values.partitions import is_address

MODES: Final = ("off", "shadow", "enforce")
PATH_KINDS: Final = ("any", "exact", "prefix", "route")
MISSING_PARTITION: Final = ("skip", "ip", "deny")
CHARGE_WHEN: Final = ("any", "success", "failure")

#: The slug of the rule that decides while a process can read no rules.
UNREAD: Final = "without-rules"

#: The conditions of a rule; "" = a request matches all of them.
Mismatch = Literal["", "method", "path", "view", "scope"]


class FailurePolicy(NamedTuple):
    """What a rule does while the engine is out of reach. A new policy must state both, and is not open by mistake.

    counts: each process counts requests itself, with a share of the quota.
    rejects: a request that was not counted is rejected.
    """

    counts: bool
    rejects: bool


#: The policies by name, the default first. Code uses these fields instead of comparing names.
FAILURE_POLICIES: Final[Mapping[str, FailurePolicy]] = {
    "local": FailurePolicy(counts=True, rejects=False),
    "open": FailurePolicy(counts=False, rejects=False),
    "closed": FailurePolicy(counts=False, rejects=True),
}


class Facts(NamedTuple):
    """Facts of a request that rules match. route: the URL pattern's text. scope: named by the caller. Empty = none."""

    method: str
    path: str
    route: str = ""
    view_name: str = ""
    scope: str = ""


class RejectedRule(NamedTuple):
    """A rule that cannot be used, and why."""

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
    """A limit of a rule.

    max_delay: maximum seconds that an allowed request occupies a synchronous worker; for leaky buckets only.
    generation: part of the counters' names; a higher one resets the counters.
    """

    limit: Limit
    max_delay: float = 0.0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A rule with its limits by tier slug; under `None` those of every other tier; an empty tuple = unlimited.

    methods: empty = all; GET includes HEAD. partition_by: empty = one counter for all callers. cost: units
    of one request. count_refusals: whether rejected requests are charged, too. charge_when: for which responses
    the charge is kept: any, success (a status below 400) or failure. sync_interval: seconds for which a process keeps
    units that it fetches in advance; negative = it counts by itself, `None` = an exact rule. exact_usage: usage counts
    every caller. counters: their name, which rules in code can share; empty = the slug.
    """

    slug: str
    name: str
    mode: str
    limits: Mapping[str | None, tuple[LimitRecord, ...]] = field(hash=False)
    methods: frozenset[str] = frozenset()
    path: str = ""
    path_kind: str = PATH_KINDS[0]
    view_name: str = ""
    scope: str = ""
    partition_by: tuple[str, ...] = ()
    missing_partition: str = MISSING_PARTITION[0]
    failure_policy: str = "local"
    cost: int = 1
    priority: int = 100
    message: str = ""
    count_refusals: bool = False
    charge_when: str = CHARGE_WHEN[0]
    sync_interval: float | None = None
    exact_usage: bool = False
    counters: str = ""
    #: True if all requests whose body cannot be read share one counter. Read for each request without a value.
    counts_unreadable: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown failure policy now, and not only during an outage."""
        if self.failure_policy not in FAILURE_POLICIES:
            raise ValueError(f"failure_policy: {self.failure_policy!r} is unknown.")
        shares = self.missing_partition == "ip" and self.reads_body and not self.is_wide
        object.__setattr__(self, "counts_unreadable", shares)

    @property
    def reads_body(self) -> bool:
        """True if it is split by a field of the body."""
        return any(name.startswith("field:") for name in self.partition_by)

    @property
    def is_wide(self) -> bool:
        """True if it names no view, scope or whole path. A rule in code, with ":" in its slug, is a view's."""
        return self.path_kind in ("any", "prefix") and not (self.view_name or self.scope or ":" in self.slug)

    def __str__(self) -> str:
        return self.slug

    @property
    def key_prefix(self) -> str:
        """The start of the keys of its counters; the digest of the caller follows."""
        return f"{self.counters or self.slug}:"

    @property
    def during_outage(self) -> FailurePolicy:
        """The policy while the engine is out of reach."""
        return FAILURE_POLICIES[self.failure_policy]

    @property
    def depends_on_tier(self) -> bool:
        """True if some tier has its own limits here."""
        return any(tier is not None for tier in self.limits)

    @property
    def is_shared(self) -> bool:
        """True if all callers share its counters."""
        return not self.partition_by

    @property
    def has_months(self) -> bool:
        """True if one of its limits has months that may begin on a caller's own day."""
        return not self.is_shared and any(
            record.limit.calendar == "month" for records in self.limits.values() for record in records
        )

    @property
    def asks_for_address(self) -> bool:
        """True if it counts requests by their address, at least those without another value."""
        return any(map(is_address, self.partition_by)) or (bool(self.partition_by) and self.missing_partition == "ip")

    def digest_in(self, key: str) -> str:
        """Return the caller's digest in the key of a charge of this rule."""
        return key.removeprefix(self.key_prefix).partition(":")[0]

    def limits_for(
        self, tier: TierRecord | None, multiplier: Decimal = Decimal(1), anchor: Anchor | None = None
    ) -> tuple[LimitRecord, ...]:
        """Return the limits of this tier, else those of every other tier, else none: the rule does not apply to it.

        If all callers share the counters, nothing that belongs to one caller changes them. multiplier: of their
        numbers. If a limit allows this rule's cost, it still does afterwards; if it never allows it, it still does not.
        anchor: when the caller's months begin; `None` = as each limit says.
        """
        slug = tier.slug if tier else None
        records = self.limits[slug] if slug in self.limits else self.limits.get(None, ())
        if self.is_shared:
            return records
        if anchor is not None:
            records = _anchored(records, anchor)
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
        """True if it matches no request, whatever its conditions are."""
        return self.mode == "off"

    def mismatch(self, facts: Facts) -> Mismatch:
        """Return the first condition of this rule that a request with these facts does not match; "" = it matches."""
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


def _anchored(records: tuple[LimitRecord, ...], anchor: Anchor) -> tuple[LimitRecord, ...]:
    """Return these limits with the months of a caller.

    Of months that begin on different days in the rule and together now, the one with the lowest quota remains: the
    others would never reject a request.
    """
    found: dict[str, LimitRecord] = {}
    for record in records:
        limit = record.limit.anchored(anchor)
        if limit.tag not in found or limit.quota < found[limit.tag].limit.quota:
            found[limit.tag] = record._replace(limit=limit)
    return tuple(found.values())


@lru_cache(maxsize=4096)
def multiply_limit(limit: Limit, multiplier: Decimal, minimum: int = 1) -> Limit:
    """Return this limit with `multiplier` times its units; see `Limit.times`. minimum: of its capacity."""
    return limit.times(multiplier, minimum)
