"""The explanation: what each rule decides for a request, and the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from django.utils.translation import gettext as _

from ..limiter.charges import Uncharged
from ..middleware import Exemption
from ..models import AccessEntry, TierAssignment
from ..rules.records import Facts, Mismatch, RejectedRule, RuleRecord
from ..values.access import AccessRecord
from .counters import CallerRejection, Counter
from .question import Question
from .tier import TierExplanation

SEES_COUNTERS: Final = "django_ratelimiter.view_usage_report"
SEES_TIERS: Final = "django_ratelimiter.view_tierassignment"

#: The caller's values: only for readers that may see what is known about callers.
CALLER_FIELDS: Final = ("user", "api_key", "session")


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
        if not self.names_callers and any(
            getattr(question, name) or name in question.identities for name in CALLER_FIELDS
        ):
            text = _("To use %(names)s you need the permission to view usage reports or tier assignments.")
            raise CallerHidden(text % {"names": ", ".join(CALLER_FIELDS)})


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
#: entry decides, there is no entry point, or the path is ambiguous.
Bypass = Literal[Exemption, "disabled", "stopped", "allowed", "denied", "no middleware", "undecided"]

#: The first condition that does not match; "" = the rule applies.
Reason = Literal[Bypass, Mismatch, Uncharged, "off", "rejected earlier"]


@dataclass(frozen=True, slots=True)
class AccessExplanation:
    """The access entry that decides."""

    action: Annotated[str, "allow or deny."]
    kind: Annotated[str, "ip, user, api_key or digest."]
    value: Annotated[
        str,
        "An address or network, the primary key of a user, the hash of an API key, or what a caller is counted by and "
        "its digest: ip:DIGEST.",
    ]
    until: Annotated[datetime | None, "null = until it is deleted."]
    reason: str
    entry: Annotated[int | None, "Its primary key."]

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

    rule: RuleRecord
    mode: str
    applies: bool
    reason: Annotated[Reason, "A code for the first condition that does not match; empty = it applies."] = ""
    why: Annotated[str, "The same in words."] = ""
    missing: Annotated[tuple[str, ...], "The names of values that the caller lacks."] = ()
    lacks: Annotated[tuple[str, ...], "The names of values that are not known here, and that matter."] = ()
    entry_point: Annotated[str, "Who asks: middleware, throttle, scope, rate or gateway."] = ""
    rows: Annotated[str, "The tier whose limits apply; empty = those of every other tier."] = ""
    value: Annotated[str, "The identities that split its counters."] = ""
    rejects: Annotated[bool | None, "In shadow: it would; null = you may not see it."] = None
    counters: tuple[Counter, ...] = ()


@dataclass(frozen=True, slots=True)
class CallerResponse:
    """What the caller would get now.

    If the request is allowed, status and body come from the view, and only our fields are known; all are for a gateway.
    """

    allowed: bool
    status: Annotated[int | None, "null = the view's own; 404, 405 = no view, or none of its methods, handles it."]
    fields: Mapping[str, str]
    body: str
    is_ours: Annotated[bool, "The body is; else it is that of the framework around the view."]
    binding: Annotated[str, "The rule that decides."]
    delay: Annotated[float, "Seconds before the response."]
    degraded: bool
    error: Annotated[str, "What the view's code raised, if it is not known how that is answered."] = ""


@dataclass(frozen=True, slots=True)
class LoggedRejection:
    """The rejection that a question's reference names."""

    rules: tuple[str, ...]
    rule: str
    digest: Annotated[str, "The start of the caller's digest."]
    found: Annotated[bool | None, "One of the counters is the one that rejected; null = you may not see it."]
    rejections: Annotated[
        tuple[CallerRejection, ...],
        "What is known about it, for a day; empty = nothing more, you may not see it, or `doubts` say that it cannot "
        "be read now.",
    ]
    #: The question is about the caller who was rejected, as one of these rules counts it.
    same_caller: bool = False
    #: Why Redis could not be asked about it or its caller; "" = it was asked.
    problem: str = ""

    MEMBERS = ("rules", "rule", "digest", "found", "rejections")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the limiter allows or rejects a request."""

    request: Facts
    version: int
    bypass: Annotated[Bypass, "Why no rule is tested; empty = rules are."]
    access: Annotated[AccessExplanation | None, "The access entry that decides."]
    entry_points: Annotated[tuple[str, ...], "In order."]
    tier: TierExplanation
    identities: Annotated[
        Mapping[str, str | None], "The caller's values, if rules need them; … = a credential, not shown."
    ]
    unknown: Annotated[tuple[str, ...], "The names of values that matter and are not known."]
    doubts: Annotated[tuple[str, ...], "What cannot be known here, in words."]
    hidden: Annotated[tuple[str, ...], "What you may not view."]
    rules: tuple[RuleExplanation, ...]
    left_out: Annotated[tuple[RejectedRule, ...], "Rules that are not in force at all."]
    response: Annotated[CallerResponse | None, "null = you may not see it."]
    with_token: Annotated[
        CallerResponse | None, "What a user with a token gets that the view checks itself; null = the same."
    ]
    logged: Annotated[LoggedRejection | None, "The rejection that the reference names."]

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
