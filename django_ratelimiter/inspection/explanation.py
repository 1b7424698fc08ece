"""The explanation: what each rule decides for a request, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..rules.records import Facts, Mismatch, RejectedRule, RuleRecord
from ..values.references import Reference
from .counters import CallerRejection, Counter
from .grounds import AccessExplanation, TierExplanation

#: Why no rule is tested: the limiter is off by its setting, enforcement is stopped, the request is exempt, an access
#: entry decides, there is no entry point, or gateways ask this view about other requests.
Bypass = Literal[Exemption, "disabled", "stopped", "allowed", "denied", "no middleware", "gateway"]

#: The first condition that does not match; "" = the rule applies.
Reason = Literal[Bypass, Mismatch, Uncharged, "off", "rejected earlier"]


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """What a rule decides for the request."""

    MEMBERS = ("rule", "mode", "applies", "reason", "why", "missing", "lacks", "rows", "rejects", "counters")

    rule: RuleRecord
    reason: Reason  # a code for the first condition that does not match; empty = it applies
    why: str  # the same in words
    missing: tuple[str, ...]  # the names of values that the caller lacks
    lacks: tuple[str, ...]  # the names of values that are not known here, and that matter
    rows: str  # the tier whose limits apply; empty = those of every other tier
    counters: tuple[Counter, ...] | None  # `None` = you may not see them

    @property
    def mode(self) -> str:
        return self.rule.mode

    @property
    def applies(self) -> bool:
        """True if it is tested for this request."""
        return not self.reason

    @property
    def rejects(self) -> bool | None:
        """True if it would reject the request, also in shadow; `None` = you may not see it."""
        return None if self.counters is None else any(each.allowed is False for each in self.counters)


@dataclass(frozen=True, slots=True)
class CallerResponse:
    """What the caller would get now, as far as rules and access entries decide."""

    allowed: bool
    status: int | None  # of a rejection, unless your own RESPONSE has another; `None` = the view's own
    binding: str  # the rule that rejects
    delay: float  # seconds before the response
    degraded: bool


@dataclass(frozen=True, slots=True)
class LoggedRejection:
    """The rejection that a question's reference names."""

    reference: Reference
    found: bool | None  # one of the counters is the one that rejected; `None` = you may not see it
    #: What is known about it, for a day; empty = nothing more, you may not see it, or `doubts` say that it cannot be
    #: read now.
    rejections: tuple[CallerRejection, ...] = ()
    #: The question is about the caller who was rejected.
    same_caller: bool = False
    #: Why Redis could not be asked about it or its caller; "" = it was asked.
    problem: str = ""

    MEMBERS = ("reference", "found", "rejections")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the limiter allows or rejects a request."""

    request: Facts
    version: int
    bypass: Bypass  # why no rule is tested; empty = rules are
    access: AccessExplanation | None  # the access entry that decides
    tier: TierExplanation
    identities: Mapping[str, str | None]  # the caller's values, if rules need them; … = a credential, not shown
    unknown: tuple[str, ...]  # the names of values that matter and are not known
    doubts: tuple[str, ...]  # what cannot be known here, in words
    hidden: tuple[str, ...]  # what you may not view
    rules: tuple[RuleExplanation, ...]
    left_out: tuple[RejectedRule, ...]  # rules that are not in force at all
    in_code: tuple[str, ...]  # the view's own limits, which are not decided here
    response: CallerResponse | None  # `None` = you may not see it
    logged: LoggedRejection | None  # the rejection that the reference names

    @property
    def access_of_logged(self) -> AccessExplanation | None:
        """The access entry that decides, if the caller is the one of the logged rejection."""
        return self.access if self.logged and self.logged.same_caller else None

    @property
    def is_degraded(self) -> bool:
        """True if Redis did not answer."""
        return bool(self.response and self.response.degraded) or bool(self.logged and self.logged.problem)

    @property
    def undecided(self) -> tuple[RuleExplanation, ...]:
        """The enforced rules that count by a value that is not known here: they may reject the request after all."""
        return tuple(each for each in self.rules if each.mode == "enforce" and each.lacks)

    @property
    def applying(self) -> tuple[RuleExplanation, ...]:
        """The rules that apply."""
        return tuple(each for each in self.rules if each.applies)

    @property
    def others(self) -> tuple[RuleExplanation, ...]:
        """The rules that do not apply."""
        return tuple(each for each in self.rules if not each.applies)
