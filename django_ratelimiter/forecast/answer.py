"""The forecast of one changed rule, from whatever source: its figures, its one sentence, and its data for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, Final, NamedTuple

from django.utils.formats import number_format
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..rules.formatting import units
from ..rules.records import RuleRecord
from . import estimates
from .estimates import NOTHING, Range
from .ledger import MISLEADING, Blind
from .tally import AFTER, BEFORE, NEWLY, NO_LONGER, Sums, Tally

#: "About 9 in 100": the numbers of callers that a share is told of, the first for which it is at least one.
_OUT_OF: Final = (100, 1_000, 10_000, 100_000)

#: More requests than this must be rejected by the sample for it to differ from fewer that were rejected.
_MUCH = 100

#: What decides, besides limits, how many of its requests a rule rejects.
_REJECTING: Final = ("is_off", "cost", "count_refusals", "charge_when")

CALLERS, REQUESTS = 0, 1


class Effect(NamedTuple):
    """Callers with requests that are rejected, and these requests."""

    callers: Range
    requests: Range


@dataclass
class RuleForecast:
    """What a changed rule would have done.

    before: `None` = there was no such rule, or it rejected nothing. tally: the callers that the source holds, one in
    `one_in` of all. recorded: the requests of all callers, by tier. blind: what the source does not show. notes: what
    readers must know besides, as text. rejected: requests that were rejected, as counted; `None` = not known. accepted:
    the operator accepts what is not seen.
    """

    slug: str
    before: RuleRecord | None
    after: RuleRecord
    tally: Tally
    recorded: Mapping[str, int]
    blind: Sequence[Blind]
    one_in: int = 1
    notes: Sequence[str] = ()
    rejected: int | None = None
    accepted: bool = False
    #: Whether there is another rule to compare with; else all that it rejects is told, not what is new.
    is_change: bool = True
    #: Callers by their place in `tally.top`, as people know them.
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_shared(self) -> bool:
        """True if all callers share one counter: then requests count, not callers."""
        return self.after.is_shared

    @property
    def is_exact(self) -> bool:
        """True if each request and its time is known."""
        return self.one_in == 1 and len(self.tally.total.counts) == 1

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
        return self.tally.total.callers

    @property
    def callers(self) -> int:
        """About how many callers there were; those who share one counter are one."""
        return self.sampled if self.is_shared else self.sampled * self.one_in

    @cached_property
    def requests(self) -> int:
        """How many requests the rule matched."""
        return sum(self.recorded.values())

    def effect(self, what: int, tier: str | None = None) -> Effect:
        """Return what is rejected: by the earlier rule and others, see `tally`. tier: `None` = of all."""
        sums = self.tally.total if tier is None else self.tally.by_tier.get(tier) or Sums(1)
        if self.one_in == 1 or self.is_shared:
            return Effect(*(estimates.exact(sums.triple(unit, what)) for unit in (CALLERS, REQUESTS)))
        callers = self._share(sums, what).times(sums.callers * self.one_in)
        if tier is not None:
            return Effect(callers, self._requests(sums, what, tier))
        of_tiers = [self._requests(each, what, name) for name, each in self.tally.by_tier.items()]
        return Effect(callers, Range(*(sum(each[level] for each in of_tiers) for level in range(3))))

    def _requests(self, sums: Sums, what: int, tier: str) -> Range:
        total = self.recorded.get(tier, 0)
        if self._is_same(what, tier):
            return NOTHING
        scale = total / sums.requests if total and sums.requests else float(self.one_in)
        counts = sums.triple(CALLERS, what)
        found = estimates.requests(sums.triple(REQUESTS, what), counts, scale, total)
        if counts[0]:
            return found
        share = self._share(sums, what)  # callers outside the sample may be rejected with all of their requests
        return found._replace(high=min(share.high * total, total))

    def _share(self, sums: Sums, what: int) -> Range:
        tiers = [tier for tier, each in self.tally.by_tier.items() if each is sums] or [*self.tally.by_tier]
        if tiers and all(self._is_same(what, tier) for tier in tiers):
            return NOTHING
        return estimates.share_of_callers(sums.triple(CALLERS, what), sums.callers)

    def _is_same(self, what: int, tier: str) -> bool:
        """Return whether both rules have the same limits for a tier, so that nothing changes for any of its callers."""
        if what not in (NEWLY, NO_LONGER) or self.before is None:
            return False
        effects = [
            (rule.limits.get(tier, rule.limits.get(None, ())), *(getattr(rule, name) for name in _REJECTING))
            for rule in (self.before, self.after)
        ]
        return effects[0] == effects[1]

    def share(self, unit: int, what: int = NEWLY) -> Range:
        """Return the callers (0) or requests (1) that are rejected so as a share of all, from 0 to 1."""
        if unit == CALLERS and self.one_in > 1:
            return self._share(self.tally.total, what)
        number = self.requests if unit == REQUESTS else self.callers
        return self.effect(what)[unit].times(1 / number) if number else NOTHING

    def weighed_share(self, unit: int) -> float:
        """Return this share by the best estimate, if each request that is not seen is one, of a caller of its own."""
        number = self.requests if unit == REQUESTS else self.callers
        newly = self.effect(NEWLY)[unit].about + self.unseen
        return newly / (number + self.unseen) if number + self.unseen else 0.0

    @property
    def differs(self) -> bool:
        """Return whether the earlier rule, applied to the source, rejects other numbers than were rejected."""
        if self.before is None or self.rejected is None:
            return False
        low, about, high = self.effect(BEFORE).requests
        return self.rejected > high or bool(self.rejected and not about) or (self.rejected < low and about >= _MUCH)

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
        if self.differs:
            text = _(
                "Do not rely on this: %(rejected)s of %(all)s requests were rejected; by this sample it would be "
                "%(found)s."
            )
            words = {"rejected": units(self.rejected or 0), "found": in_words(self.effect(BEFORE).requests)}
            yield text % {**words, "all": units(self.requests)}
        after = self.effect(AFTER)
        if self.is_shared:
            text = _("None of %(all)s requests would be rejected.")
            if round(after.requests.high):
                text = _("%(number)s of %(all)s requests would be rejected.")
            yield capfirst(text % {"number": in_words(after.requests), "all": units(self.requests)})
        else:
            yield self._callers_in_words()
        if self.is_change:
            effects = [[sums.triple(unit, what) for unit in (CALLERS, REQUESTS)] for sums in [self.tally.total]
                       for what in (BEFORE, AFTER, NEWLY)]  # fmt: skip
            is_same = effects[0] == effects[1] and effects[2] == [(0, 0, 0)] * 2
            yield _("Now it is the same.") if is_same else _("Now: %s.") % self._now()

    def _callers_in_words(self) -> str:
        counts, sampled = self.tally.total.triple(CALLERS, AFTER), self.sampled
        words = {"some": units(counts[1]), "sampled": units(sampled), "callers": units(self.callers),
                 "most": units(max(counts))}  # fmt: skip
        if self.is_exact:
            text = _("%(some)s of %(callers)s callers would be rejected at least once.")
            if not counts[1]:
                text = _("Nobody of %(callers)s callers would be rejected.")
        elif not any(counts):
            text = ngettext(
                "The one sampled caller (of about %(callers)s) would not be rejected.",
                "Nobody of %(sampled)s sampled callers (of about %(callers)s) would be rejected.",
                sampled,
            )
        elif not counts[1]:
            text = ngettext(
                "The one sampled caller (of about %(callers)s) would probably not be rejected.",
                "Probably nobody of %(sampled)s sampled callers (of about %(callers)s) would be rejected, at worst "
                "%(most)s of them.",
                sampled,
            )
        elif counts[1] == sampled:
            text = ngettext(
                "The one sampled caller (of about %(callers)s) would be rejected at least once.",
                "All %(sampled)s sampled callers (of about %(callers)s) would be rejected at least once.",
                sampled,
            )
        else:
            share = self._share(self.tally.total, AFTER)
            base = _base(share)
            text = _("About %(about)s in %(base)s callers would be rejected at least once, at worst %(worst)s.")
            words |= {"about": str(round(share.about * base)), "base": units(base)}
            words |= {"worst": str(ceil(share.high * base))}
        return text % words

    def _now(self) -> str:
        if self.is_shared:
            return in_words(self.effect(BEFORE).requests)
        about = self.tally.total.triple(CALLERS, BEFORE)[1]
        if not about:
            return _("nobody in the sample") if self.rejected else _("nobody")
        if about == self.sampled:
            return _("all of them")
        if self.is_exact:
            return units(about)
        share = self._share(self.tally.total, BEFORE)
        words = {"about": round(share.about * _base(share)), "base": units(_base(share))}
        return _("about %(about)s in %(base)s callers") % words

    def lines(self) -> Iterator[str]:
        """Yield the forecast for people: the answer, and what is behind it."""
        yield f"{self.slug}: {self.answer()}"
        if not self.shows_figures:
            return
        whats = ((_("Rejected"), AFTER), (_("Newly rejected"), NEWLY), (_("No longer rejected"), NO_LONGER))
        for text, what in whats if self.is_change else whats[:1]:
            found, of_all = self.effect(what), [self.share(unit, what) for unit in (CALLERS, REQUESTS)]
            requests = ngettext("%s request", "%s requests", round(found.requests.about)) % in_words(found.requests)
            callers = ngettext("%s caller", "%s callers", round(found.callers.about)) % in_words(found.callers)
            yield f"  {text}: {requests} ({share_in_words(of_all[1])}), {callers} ({share_in_words(of_all[0])})."
        for each in self.tally.top[:5]:
            words = {"who": self.names.get(each.who, each.who), "at": f"{each.first_at:%Y-%m-%d %H:%M:%S}"}
            words |= {"number": units(each.after), "all": units(each.requests)}
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
                yield text % {"rule": self.slug, "found": f"{100 * found:.3g} %", "most": f"{100 * most:.3g} %"}

    def data(self) -> dict[str, Any]:
        """Return the forecast for programs. Ranges have low, about and high; shares are from 0 to 1."""
        return {
            "answer": self.answer(),
            "is_known": self.is_known,
            "is_exact": self.is_exact,
            "blind": [{**each._asdict(), "is_countable": each.is_countable} for each in self.blind],
            "notes": [*self.notes],
            **self._figures(None),
            "share_of_callers": self.share(CALLERS)._asdict() if self.sampled else None,
            "share_of_requests": self.share(REQUESTS)._asdict() if self.sampled else None,
            "by_tier": {tier: self._figures(tier) for tier in sorted(self.tally.by_tier)},
            "top_callers": [
                {
                    "caller": self.names.get(each.who, each.who),
                    "tier": each.tier,
                    "requests": each.requests,
                    "before": each.before,
                    "after": each.after,
                    "newly": -each.minus_newly,
                    "first": each.first_at.isoformat(),
                }
                for each in self.tally.top
            ],
        }

    def _figures(self, tier: str | None) -> dict[str, Any]:
        sums = self.tally.total if tier is None else self.tally.by_tier[tier]
        found: dict[str, Any] = {"callers": sums.callers * (1 if self.is_shared else self.one_in)}
        found["requests"] = self.requests if tier is None else self.recorded.get(tier, sums.requests)
        for name, what in (("before", BEFORE), ("after", AFTER), ("newly", NEWLY), ("no_longer", NO_LONGER)):
            effect = self.effect(what, tier)
            found[name] = {"callers": effect.callers._asdict(), "requests": effect.requests._asdict()}
        return found


def in_words(found: Range) -> str:
    """Return a range of counts: "3", or "about 120 (30 to 400)"."""
    low, about, high = (round(each) for each in found)
    if low == about == high:
        return units(about)
    text = _("about %(about)s (%(low)s to %(high)s)")
    return text % {"about": units(about), "low": units(low), "high": units(high)}


def share_in_words(found: Range) -> str:
    """Return a range of shares, from 0 to 1, in percent: "3 %", or "about 3 % (2 to 4.5 %)"."""
    low, about, high = (decimal(100 * each) for each in found)
    if low == about == high:
        return _("%s %%") % about
    return _("about %(about)s %% (%(low)s to %(high)s %%)") % {"about": about, "low": low, "high": high}


def decimal(value: float) -> str:
    """Return a number with as many digits as matter."""
    places = 0 if value == round(value) else 3 if value < 0.1 else 2 if value < 1 else 1
    return number_format(round(value, places), decimal_pos=places)


def _base(share: Range) -> int:
    return next((base for base in _OUT_OF if share.about * base >= 1), _OUT_OF[-1])
