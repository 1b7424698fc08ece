"""The explanation: what each rule decides for a request, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from django.utils.translation import gettext as _

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..models import AccessEntry, TierAssignment
from ..rules.records import Facts, Mismatch, RejectedRule, RuleRecord
from ..values.access import AccessRecord
from ..values.references import Reference
from .counters import CallerRejection, Counter
from .question import Question
from .tier import TierExplanation

SEES_COUNTERS: Final = "django_ratelimiter.view_usage_report"
SEES_TIERS: Final = "django_ratelimiter.view_tierassignment"

#: The caller's values: only for readers that may see what is known about callers.
CALLER_FIELDS: Final = ("user", "api_key")
_CALLERS: Final = (*CALLER_FIELDS, "session")


class CallerHidden(Exception):
    """The question names a caller, which this reader must not do; the message names the permission."""


class Rights(NamedTuple):
    """Which parts a reader may see."""

    counters: bool = True
    tiers: bool = True
    entries: bool = True

    @property
    def hidden(self) -> tuple[str, ...]:
        """The names of the other parts."""
        return tuple(name for name, sees in zip(("counters", "tiers", "access entries"), self, strict=True) if not sees)

    @property
    def names_callers(self) -> bool:
        """True if the reader may ask about a certain user, API key or session."""
        return self.counters or self.tiers

    def check(self, question: Question) -> None:
        """Raise CallerHidden if the question names a caller, which this reader must not do."""
        if self.names_callers:
            return
        if question.user or question.api_key or any(name in question.identities for name in _CALLERS):
            text = _("To use %(names)s you need the permission to view usage reports or tier assignments.")
            raise CallerHidden(text % {"names": ", ".join(_CALLERS)})


def rights_of(reader: Any) -> Rights:
    """Return what this user may see; `None` = everything."""
    if reader is None:
        return Rights()
    return Rights(reader.has_perm(SEES_COUNTERS), may_view(reader, TierAssignment), may_view(reader, AccessEntry))


def may_view(reader: Any, model: type[Any]) -> bool:
    """Return whether this user may view the rows of a model; `None` = may see everything."""
    acts = (f"{model._meta.app_label}.{act}_{model._meta.model_name}" for act in ("view", "change"))
    return reader is None or any(map(reader.has_perm, acts))


#: Why no rule is tested: the limiter is off by its setting, enforcement is stopped, the request is exempt, an access
#: entry decides, there is no entry point, or gateways ask this view about other requests.
Bypass = Literal[Exemption, "disabled", "stopped", "allowed", "denied", "no middleware", "gateway"]

#: The first condition that does not match; "" = the rule applies.
Reason = Literal[Bypass, Mismatch, Uncharged, "off", "rejected earlier"]


@dataclass(frozen=True, slots=True)
class AccessExplanation:
    """The access entry that decides."""

    action: str  # allow or deny
    kind: str  # ip, user, api_key or digest
    #: An address or network, the primary key of a user, the hash of an API key, or what a caller is counted by and its
    #: digest: ip:DIGEST.
    value: str
    until: datetime | None  # `None` = until it is deleted
    reason: str
    entry: int | None  # its primary key

    @classmethod
    def of(cls, record: AccessRecord | None) -> AccessExplanation | None:
        """Return the explanation of an entry; `None` = none decides."""
        if record is None:
            return None
        until = None if record.expires_at is None else datetime.fromtimestamp(record.expires_at, UTC)
        return cls(record.action, record.kind, record.value, until, record.reason, record.pk)

    @property
    def subject(self) -> str:
        """The caller as text."""
        return str(AccessEntry(kind=self.kind, value=self.value).subject)

    @property
    def action_in_words(self) -> str:
        """The action in one word."""
        return AccessEntry(action=self.action).action_in_words


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
