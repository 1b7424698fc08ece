"""The explanation: what each rule decides for a request, and the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..rules.records import Facts, Mismatch, RejectedRule, RuleRecord
from ..values.access import AccessRecord

#: Why no rule is tested: the limiter is off by its setting, enforcement is stopped, the request is exempt, an access
#: entry decides, there is no entry point, an earlier call has rejected the request, or the path is ambiguous.
Bypass = Literal[
    Exemption, "disabled", "stopped", "allowed", "denied", "no middleware", "rejected earlier", "undecided"
]

#: The first condition that does not match; "" = the rule applies.
Reason = Literal[Bypass, Mismatch, Uncharged, "off"]


@dataclass(frozen=True, slots=True)
class CounterState:
    """One limit of a rule that applies, and its counter now.

    words: the limit. key: its name in the store. digest: of the caller, as in logs and reports. used, left: units now.
    allowed: this limit would allow the request. reset_at: when the full quota is back; `None` = it is. retry_at: when
    the request would be allowed; `None` = now, or never. The last five are `None` if the engine did not answer.
    """

    words: str
    key: str
    digest: str
    quota: int
    cost: int
    used: int | None = None
    left: int | None = None
    allowed: bool | None = None
    reset_at: datetime | None = None
    retry_at: datetime | None = None
    never: bool = False
    soft_exceeded: bool = False
    delay: float = 0.0

    @property
    def blocked_until(self) -> datetime | None:
        """The time at which a request like this one is allowed again; `None` = now, or never."""
        return self.retry_at if self.allowed is False else None


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """What a rule decides for the request.

    applies: it is charged, at the entry point `door`. reason: else the first condition that does not match. missing:
    the names that the caller lacks. rows: the tier whose limits apply; "" = those of every other tier. value: what its
    counters are split by.
    """

    rule: RuleRecord
    applies: bool
    reason: Reason
    door: str = ""
    missing: tuple[str, ...] = ()
    rows: str = ""
    value: str = ""
    counters: tuple[CounterState, ...] = ()

    @property
    def rejects(self) -> bool:
        """True if it rejects the request, or would if it were enforced."""
        return any(counter.allowed is False for counter in self.counters)


@dataclass(frozen=True, slots=True)
class TierExplanation:
    """The caller's tier, and why.

    kind: assignment, default, resolver; none = the caller has no tier; unchecked = the credentials are not checked
    yet; "" = there are no tiers, or none is needed. subject: user, group, api_key_hash or partition. assignment:
    its primary key.
    """

    kind: str
    slug: str = ""
    name: str = ""
    multiplier: Decimal = Decimal(1)
    assignment: int | None = None
    subject: str = ""
    whom: str = ""
    starts_at: datetime | None = None
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ClientResponse:
    """What the caller would get now.

    allowed: then status and body come from the view, and only our fields are known; all are for a gateway. is_ours:
    the body is; else it is that of the framework around the view. binding: the slug of the rule that decides. delay:
    seconds before the response. error: raised by the view's code, if it is not known how the project responds
    to it.
    """

    allowed: bool
    status: int | None
    fields: Mapping[str, str]
    body: str
    is_ours: bool
    binding: str
    delay: float
    degraded: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one request.

    doors: the entry points, in order. bypass: why no rule is tested. unknown: names of values
    that matter, but are not in the question. unexplained: names of the view's own code that limits it.
    unchecked: the request has a field Authorization, which only the view could check, and the question names no user.
    with_token: the response if the user has a token that the view checks itself, if it differs; `None` =
    it is the same. left_out: rules that cannot be used. identities: the caller's values by name, as far as the
    rules need them. hidden: the parts that were removed, because the reader may not see them.
    """

    facts: Facts
    version: int
    doors: tuple[str, ...]
    bypass: Bypass
    access: AccessRecord | None
    tier: TierExplanation
    rules: tuple[RuleExplanation, ...]
    left_out: tuple[RejectedRule, ...]
    response: ClientResponse
    unknown: tuple[str, ...]
    identities: Mapping[str, str | None]
    unexplained: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    unchecked: bool = False
    problem: str = ""
    with_token: ClientResponse | None = None

    @property
    def undecided(self) -> tuple[RuleExplanation, ...]:
        """The enforced rules that count by a value that is not known here: they may reject the request after all."""
        return tuple(each for each in self.rules if each.rule.mode == "enforce" and self.lacks(each))

    def lacks(self, each: RuleExplanation) -> tuple[str, ...]:
        """Return the names that a rule counts by and that are not known here; empty if they do not matter."""
        if not (each.applies or each.reason == "missing"):
            return ()
        instead = ("ip",) if each.missing and each.rule.missing_partition == "ip" else ()
        return tuple(name for name in (*each.rule.partition_by, *instead) if name in self.unknown)

    @property
    def applying(self) -> tuple[RuleExplanation, ...]:
        """The rules that apply."""
        return tuple(each for each in self.rules if each.applies)
