"""The forecast of one changed rule, from whatever source: its figures, its one sentence, and its data for programs.

What the source does not show of the rule is found before there is a verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..conf import settings
from ..models import TierAssignment
from ..rules.formatting import units
from ..rules.records import LimitRecord, RuleRecord
from .evaluate import AFTER, BEFORE, NEWLY, NO_LONGER, NOTHING, Range, Tally, all_callers, all_requests

#: What decides which requests of a caller a rule rejects.
_REJECTING: Final = ("limits", "is_off", "cost", "count_refusals", "charge_when")

CALLERS, REQUESTS = 0, 1

#: The effects, by their names for programs.
_WHATS: Final = {"before": BEFORE, "after": AFTER, "newly": NEWLY, "no_longer": NO_LONGER}


#: Why something is not seen. "unmatched": no request. "tiers": none of these tiers. "value": what callers are told
#: apart by. "unreadable": lines. "outcome": failures. "cost", "scope": what code asks for. "duration", "resolution":
#: of times. "own_day": months of a caller. "others": the samples are of other requests. "incomplete": some are missing.
BlindKind = Literal[
    "unmatched", "tiers", "value", "unreadable", "outcome", "cost", "scope", "duration", "resolution", "own_day",
    "others", "incomplete",
]  # fmt: skip

#: Kinds with which what is seen is wrong, and not a part.
MISLEADING: Final = ("outcome", "cost", "duration", "resolution", "own_day")

#: If at least this share of a file's lines lacks what a rule needs, the others say nothing of it.
MOST: Final = 0.5

#: Shorter windows need times with fractions: within a second, the order of requests is not known.
SHORT_US: Final = 30_000_000


class Blind(NamedTuple):
    """What is not seen of one rule. text: why, as a part of a sentence.

    lines: how many requests are not seen. They count as newly rejected, each of a caller of its own. 0 = it is not
    known how many, so the rule is not known.
    """

    kind: BlindKind
    text: str
    lines: int = 0

    @property
    def is_countable(self) -> bool:
        """True if the number of requests that are not seen is known."""
        return self.lines > 0


class Effect(NamedTuple):
    """Callers with requests that are rejected, and these requests."""

    callers: Range
    requests: Range


@dataclass
class RuleForecast:
    """What a changed rule would have done.

    before: `None` = there was no such rule, or it rejected nothing. tally: the callers that the source holds, one in
    `one_in` of all. requests: how many the rule matched, of all callers. blind: what the source does not show. notes:
    what readers must know besides, as text. rejected: requests that were rejected, as counted; `None` = not known.
    accepted: the operator accepts what is not seen.
    """

    slug: str
    before: RuleRecord | None
    after: RuleRecord
    tally: Tally
    requests: int
    blind: Sequence[Blind]
    one_in: int = 1
    notes: Sequence[str] = ()
    rejected: int | None = None
    accepted: bool = False
    #: Whether there is another rule to compare with; else all that it rejects is told, not what is new.
    is_change: bool = True

    @property
    def is_shared(self) -> bool:
        """True if all callers share one counter: then requests count, not callers."""
        return self.after.is_shared

    @property
    def is_exact(self) -> bool:
        """True if each request and its time is known."""
        return self.one_in == 1 and len(self.tally.counts) == 1

    @property
    def uncountable(self) -> list[Blind]:
        """What is not seen of an unknown number of requests."""
        return [each for each in self.blind if not each.is_countable]

    @property
    def is_known(self) -> bool:
        """False if the source does not show enough, and the operator has not accepted that."""
        return self.accepted or not self.uncountable

    @property
    def unseen(self) -> int:
        """The number of requests that are not seen, as far as it is known."""
        return sum(each.lines for each in self.blind)

    @property
    def sampled(self) -> int:
        """The number of callers that the source holds."""
        return self.tally.callers

    @property
    def callers(self) -> int:
        """About how many callers there were; those who share one counter are one."""
        return self.sampled if self.is_shared else self.sampled * self.one_in

    def effect(self, what: int) -> Effect:
        """Return what is rejected: by the earlier rule and others, see `tally`."""
        tally, total = self.tally, self.requests
        callers, requests = tally.found(CALLERS, what), tally.found(REQUESTS, what)
        if self.one_in == 1 or self.is_shared:
            return Effect(callers, requests)
        if what in (NEWLY, NO_LONGER) and self._rejects_the_same:
            return Effect(NOTHING, NOTHING)
        of_all = all_callers(callers)
        scale = total / tally.requests if total and tally.requests else float(self.one_in)
        found = all_requests(requests, callers, scale, total)
        if not callers.low:  # callers outside the sample may be rejected with all of their requests
            found = found._replace(high=min(of_all.high / max(self.callers, 1) * total, total))
        return Effect(of_all, found)

    @property
    def _rejects_the_same(self) -> bool:
        if self.before is None:
            return False
        return all(getattr(self.before, name) == getattr(self.after, name) for name in _REJECTING)

    def share(self, unit: int, what: int = NEWLY) -> float:
        """Return the callers (0) or requests (1) that are rejected so as a share of all, from 0 to 1."""
        number = self.requests if unit == REQUESTS else self.callers
        return self.effect(what)[unit].about / number if number else 0.0

    def weighed_share(self, unit: int) -> float:
        """Return the share that is newly rejected, if each request that is not seen is, of a caller of its own."""
        number = (self.requests if unit == REQUESTS else self.callers) + self.unseen
        return (self.effect(NEWLY)[unit].about + self.unseen) / number if number else 0.0

    @property
    def differs(self) -> bool:
        """Return whether the earlier rule, applied to the source, rejects other numbers than were rejected."""
        if self.before is None or self.rejected is None:
            return False
        low, about, high = self.effect(BEFORE).requests
        return not low <= self.rejected <= high or bool(self.rejected and not about)

    @property
    def not_known(self) -> str:
        """Return in a sentence why it is not known whom the rule would reject."""
        text = _("Accepted although it is not known: %s.")
        if not self.accepted:
            text = _("It is not known whom this would reject: %s.")
        return text % "; ".join(each.text for each in self.uncountable)

    @property
    def shows_figures(self) -> bool:
        """True if something is seen that is not wrong because of what is not."""
        return bool(self.sampled) and (self.accepted or all(each.kind not in MISLEADING for each in self.uncountable))

    def answer(self) -> str:
        """Return, in a few sentences, whom the changed rule would reject, and whether that differs from now."""
        found = [self.not_known] if self.uncountable else []
        if self.shows_figures:
            found += [_("Of what is seen:")] if self.uncountable else []
            found += self._sentences()
        if not self.uncountable and self.unseen:
            why = "; ".join(each.text for each in self.blind)
            found.append(_("Not seen, and added to these when a bound is checked: %s.") % why)
        return " ".join(found)

    def _sentences(self) -> Iterator[str]:
        unit, all_of = (REQUESTS, self.requests) if self.is_shared else (CALLERS, self.callers)
        before, after = self.effect(BEFORE)[unit], self.effect(AFTER)[unit]
        if self.differs:
            text = _(
                "Do not rely on this: the rule has rejected %(rejected)s of %(all)s requests in fact, and by the same "
                "estimate %(found)s."
            )
            words = {"rejected": units(self.rejected or 0), "found": in_words(self.effect(BEFORE).requests)}
            yield text % {**words, "all": units(self.requests)}
        if self.is_shared:
            text = _("%(number)s of %(all)s requests would be rejected.")
            if not round(after.high):
                text = _("None of %(all)s requests would be rejected.")
        else:
            text = _("%(number)s of %(all)s callers would be rejected at least once.")
            if not round(after.high):
                text = _("Nobody of %(all)s callers would be rejected.")
        together = units(all_of) if self.is_shared or self.one_in == 1 else _("about %s") % units(all_of)
        yield capfirst(text % {"number": in_words(after), "all": together})
        if self.is_change:
            is_same = before == after and self.effect(NEWLY)[unit] == NOTHING
            yield _("Now it is the same.") if is_same else _("Now: %s.") % in_words(before)

    def lines(self) -> Iterator[str]:
        """Yield the forecast for people: the answer, and what is behind it."""
        yield f"{self.slug}: {self.answer()}"
        if not self.shows_figures:
            return
        whats = ((_("Rejected"), AFTER), (_("Newly rejected"), NEWLY), (_("No longer rejected"), NO_LONGER))
        for text, what in whats if self.is_change else whats[:1]:
            found = self.effect(what)
            requests = ngettext("%s request", "%s requests", round(found.requests.about)) % in_words(found.requests)
            callers = ngettext("%s caller", "%s callers", round(found.callers.about)) % in_words(found.callers)
            of_requests, of_callers = percent(self.share(REQUESTS, what)), percent(self.share(CALLERS, what))
            yield f"  {text}: {requests} ({of_requests}), {callers} ({of_callers})."
        for each in self.tally.top[:5]:
            words = {"who": each.caller, "number": units(each.after), "all": units(each.requests), "at": each.first}
            yield "    " + _("%(who)s: %(number)s of %(all)s requests, the first at %(at)s") % words
        yield from (f"  {note}" for note in self.notes)

    def excess(self, most_callers: float | None, most_requests: float | None) -> Iterator[str]:
        """Yield, as text, what exceeds these shares, from 0 to 1; `None` = no maximum."""
        if self.is_shared:  # all callers are rejected or none
            most_callers, most_requests = None, most_callers if most_requests is None else most_requests
        for most, unit, text in (
            (most_callers, CALLERS, _("%(rule)s: %(found)s of the callers, more than %(most)s.")),
            (most_requests, REQUESTS, _("%(rule)s: %(found)s of the requests, more than %(most)s.")),
        ):
            if most is not None and (found := self.weighed_share(unit)) > most:
                yield text % {"rule": self.slug, "found": percent(found), "most": percent(most)}

    def data(self) -> dict[str, Any]:
        """Return the forecast for programs. Ranges have low, about and high."""
        effects = [(name, self.effect(what)) for name, what in _WHATS.items()]
        return {
            "answer": self.answer(),
            "is_known": self.is_known,
            "is_exact": self.is_exact,
            "blind": [{**each._asdict(), "is_countable": each.is_countable} for each in self.blind],
            "notes": [*self.notes],
            "callers": self.callers,
            "requests": self.requests,
            **{name: {unit: each._asdict() for unit, each in found._asdict().items()} for name, found in effects},
            "top_callers": [{**each._asdict(), "first": each.first.isoformat()} for each in self.tally.top],
        }


def in_words(found: Range) -> str:
    """Return a range of counts: "3", "about 120 (30 to 400)", or "probably 0, at most 60"."""
    low, about, high = (round(each) for each in found)
    if low == about == high:
        return units(about)
    text = _("about %(about)s (%(low)s to %(high)s)") if about else _("probably %(about)s, at most %(high)s")
    return text % {"about": units(about), "low": units(low), "high": units(high)}


def percent(share: float) -> str:
    """Return a share, from 0 to 1, in per cent."""
    return _("%s %%") % number_format(f"{100 * share:.3g}")


def blind_by_nature(rule: RuleRecord, costs: Iterable[str], *, has_outcomes: bool) -> Iterator[Blind]:
    """Yield what no source shows of a rule.

    costs: where code computes what a request costs. has_outcomes: the source shows responses of the rule that are
    failures, but not which of the others are.
    """
    if rule.charge_when != "any":
        text = _("the status of a response does not show all failures, such as those of a login form")
        yield Blind("outcome", text if has_outcomes else _("whether requests succeed is not recorded"))
    if costs := [*costs]:
        yield Blind("cost", _("code computes the cost of its requests: %s") % ", ".join(costs))
    has_anchors = TierAssignment.objects.exclude(anchor_day=None).exists
    if rule.has_months and (settings.TIER_RESOLVER or has_anchors()):
        yield Blind("own_day", _("the months of some callers begin on a day of their own"))


def unseen_tiers(before: RuleRecord | None, after: RuleRecord, seen: Collection[str]) -> Iterator[Blind]:
    """Yield the tiers whose limits are new or change, if no request is of their callers. seen: the slugs of others."""
    if before is not None and replace(before, slug=after.slug, name=after.name, limits=after.limits) != after:
        before = None
    known = {**(before.limits if before else {}), **after.limits}

    def limits(rule: RuleRecord | None, tier: str | None) -> tuple[LimitRecord, ...]:
        return rule.limits.get(tier, rule.limits.get(None, ())) if rule else ()

    met = {tier if tier in known else None for tier in seen}
    missed = [
        each or _("every other tier")
        for each in known
        if each not in met and limits(after, each) not in ((), limits(before, each))
    ]
    if missed:
        yield Blind("tiers", _("no request is of a caller of these tiers: %s") % ", ".join(missed))
