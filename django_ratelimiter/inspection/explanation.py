"""An explanation: what each rule decides for a request, and the answer; as data, and as text for pages and commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from ..models import AccessEntry
from ..rules.inline import PREFIX
from ..rules.records import Facts, RejectedRule, RuleRecord
from ..values.references import Reference
from .counters import Counter
from .grounds import TierExplanation
from .words import BYPASSES, Bypass, Reason, counter_in_words, tier_in_words


@dataclass(frozen=True, slots=True)
class Matched:
    """A rule that is tested for the request, and its counters."""

    MEMBERS = ("rule", "mode", "rows", "lacks", "rejects", "counters")

    rule: RuleRecord
    rows: str  # the tier whose limits apply; empty = those of every other tier
    lacks: tuple[str, ...]  # the names of values that are not known here, and that matter
    counters: tuple[Counter, ...]

    @property
    def mode(self) -> str:
        return self.rule.mode

    @property
    def rejects(self) -> bool:
        """True if it would reject the request, also in shadow."""
        return any(each.allowed is False for each in self.counters)


class Unmatched(NamedTuple):
    """A rule that is not tested for the request. reason: the first condition that does not match; why: in words."""

    rule: RuleRecord
    reason: Reason
    why: str
    lacks: tuple[str, ...]  # see `Matched`


class CallerResponse(NamedTuple):
    """What the caller would get now, as far as rules and access entries decide."""

    allowed: bool
    status: int | None  # of a rejection, unless your own RESPONSE has another; `None` = the view's own
    binding: str  # the rule that rejects
    delay: float  # seconds before the response
    degraded: bool


class LoggedRejection(NamedTuple):
    """The rejection that a question's reference names."""

    reference: Reference
    found: bool  # one of the counters is the one that rejected
    problem: str  # why Redis could not be asked for the caller; "" = it was asked


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the limiter allows or rejects a request."""

    MEMBERS = (
        *("request", "version", "bypass", "access", "tier", "identities", "unknown", "doubts", "matched", "unmatched"),
        *("left_out", "in_code", "response", "logged"),
    )

    request: Facts
    version: int
    bypass: Bypass  # why no rule is tested; empty = rules are
    access: AccessEntry | None  # the access entry that decides
    tier: TierExplanation
    identities: Mapping[str, str | None]  # the caller's values, if rules need them; … = a credential, not shown
    doubts: tuple[str, ...]  # what cannot be known here, in words
    matched: tuple[Matched, ...]
    unmatched: tuple[Unmatched, ...]
    left_out: tuple[RejectedRule, ...]  # rules that are not in force at all
    in_code: tuple[str, ...]  # the view's own limits, which are not decided here
    response: CallerResponse
    logged: LoggedRejection | None  # the rejection that the reference names

    @property
    def rules(self) -> tuple[Matched | Unmatched, ...]:
        """All rules that are in force."""
        return *self.matched, *self.unmatched

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of values that matter and are not known."""
        return tuple(dict.fromkeys(name for each in self.rules for name in each.lacks))

    @property
    def is_degraded(self) -> bool:
        """True if Redis did not answer."""
        return self.response.degraded or bool(self.logged and self.logged.problem)

    @property
    def undecided(self) -> tuple[Matched | Unmatched, ...]:
        """The enforced rules that count by a value that is not known here: they may reject the request after all."""
        return tuple(each for each in self.rules if each.rule.mode == "enforce" and each.lacks)

    @property
    def is_certain(self) -> bool:
        """True if the request is rejected, or no limit is left that may do so."""
        return not self.response.allowed or not (self.response.degraded or self.undecided or self.in_code)


def headline_of(explanation: Explanation) -> str:
    """Return what the caller would get, in one line. It never says "allowed" if a limit cannot be decided here."""
    response, undecided = explanation.response, explanation.undecided
    if explanation.is_certain:
        return _answer_in_words(response)
    if response.degraded:
        text = _("Not known, as Redis cannot be reached. By the rules' failure policies: %s")
        return text % _answer_in_words(response)
    if undecided:
        values = {
            "names": ", ".join(dict.fromkeys(name for each in undecided for name in each.lacks)),
            "rules": ", ".join(each.rule.slug for each in undecided),
        }
        text = _("Not known without %(names)s, which these rules count by: %(rules)s. The others allow this request.")
        return text % values
    text = _("The rules allow this request. These limits in the view's code are not decided here: %s.")
    return text % ", ".join(explanation.in_code)


def _answer_in_words(response: CallerResponse) -> str:
    values = {"status": response.status, "rule": response.binding}
    if not response.allowed and response.binding:
        return _("Rejected with status %(status)s by %(rule)s.") % values
    if not response.allowed:
        return _("Rejected with status %(status)s.") % values
    if response.delay:
        return _("Allowed after a delay of %(seconds)s seconds.") % {"seconds": number_format(round(response.delay, 3))}
    return _("Allowed.")


def notes_of(explanation: Explanation) -> list[str]:
    """Return why no rule is tested, what cannot be known, and whether the counter of a logged rejection is shown."""
    why, entry = str(BYPASSES.get(explanation.bypass, "")), explanation.access
    if entry is not None:
        why += f" ({entry.subject}{': ' if entry.reason else ''}{entry.reason})"
    return [*filter(None, (why, *explanation.doubts, _logged_in_words(explanation)))]


def _logged_in_words(explanation: Explanation) -> str:
    logged = explanation.logged
    if logged is None or explanation.bypass:
        return ""
    if logged.found:
        return _("One of the counters below is the one that rejected.")
    slug = logged.reference.rule
    if slug.startswith(PREFIX):
        return _("A limit in code rejected, which is not decided here: %s. The caller's page shows its counter.") % slug
    meant = [each for each in explanation.rules if each.rule.slug == slug]
    if wanted := [name for each in meant for name in each.lacks]:
        text = _("Enter the caller's values to see the counter that rejected. Not known here: %s.")
        return text % ", ".join(wanted)
    if not any(isinstance(each, Matched) for each in meant):
        return _("The rule that rejected does not apply to this request now: %s.") % slug
    return _(
        "None of the counters below is the one that rejected: it was another caller, or the rule has changed since."
    )


def rows_in_words(each: Matched, tier: TierExplanation) -> str:
    """Return which limits of a rule apply, and why."""
    if each.rows:
        return _("the limits of the tier %(tier)s") % {"tier": tier.name}
    return _("the limits of every other tier") if each.rule.depends_on_tier else _("the limits for everyone")


def lines_of(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of the command."""
    request = explanation.request
    named = _(", view %(view)s, route %(route)s") % {"view": request.view_name, "route": request.route}
    yield f"{request.method} {request.path}{named if request.route or request.view_name else ''}"
    yield headline_of(explanation)
    yield from (f"! {text}" for text in notes_of(explanation))
    if tier := tier_in_words(explanation.tier):
        yield _("Tier: %s") % tier
    if explanation.matched:
        yield from ("", _("These rules apply:"))
    for each in explanation.matched:
        yield f"  {each.rule.slug} ({each.mode}): {rows_in_words(each, explanation.tier)}"
        for counter in each.counters:
            mark = f" ({_('rejected before')})" if counter.logged else ""
            yield f"    {counter.limit}{mark}: {counter_in_words(counter)}"
            yield f"      {counter.key}"
    if explanation.unmatched and not explanation.bypass:
        yield from ("", _("These do not, and why:"))
        yield from (f"  {each.rule.slug}: {each.why}" for each in explanation.unmatched)
    yield from (f"  {rule}: {_('Not in force. %s') % reason}" for rule, reason in explanation.left_out)
