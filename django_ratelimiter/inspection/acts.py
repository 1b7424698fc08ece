"""What operators can do for a caller: each act has a permission, is performed, and then checks its effect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..backend import get_engine
from ..rules import cache
from ..rules.formatting import listed
from .caller import Caller
from .counters import Counter, Counters
from .giving_back import end_lease, give_back
from .grounds import grounds_of
from .reading import counters_of, read

UNBLOCK: Final = "django_ratelimiter.unblock_caller"
GRANT: Final = "django_ratelimiter.grant_caller"


class ActRefused(ValueError):
    """An act that is not possible for this caller; the message says why, and nothing was changed."""


class Outcome(NamedTuple):
    """The outcome of an act."""

    text: str
    took: Annotated[bool, "Whether a check afterwards found it in force."] = True
    changed: Annotated[bool, "False = an act with this number was already started."] = True


class Done(NamedTuple):
    """What was done, for the log. row: the written row; `None` = only counters. is_new: it was added."""

    text: str
    row: Any = None
    is_new: bool = False


class Act(ABC):
    """An action of an operator for a caller.

    kind: its name in the log. permission: that it needs. writes_rows: it writes to the database, in a transaction;
    else it calls the engine, outside of a transaction.
    """

    kind: ClassVar[str]
    permission: ClassVar[str]
    writes_rows: ClassVar[bool] = False

    @abstractmethod
    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        """Do it. Raises ActRefused, EngineUnavailable and ValidationError."""

    @abstractmethod
    def check(self, caller: Caller, done: Done) -> Outcome:
        """Check after the commit, with the engine and the database, whether it took effect."""


@dataclass
class ResetCounters(Act):
    """Reset counters, by their names; empty = all of the caller's own."""

    kind = "reset"
    permission = UNBLOCK
    names: Sequence[str] = ()

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        found = counters_now(caller)
        counters = found.named(self.names) if self.names else found.own
        if not counters:
            raise ActRefused(
                _("There is no such counter of this caller's own.")
                if self.names
                else _("No rule in force counts this caller separately.")
            )
        get_engine().reset([each.charge for each in counters])
        self._counters = counters
        rules = listed(dict.fromkeys(each.rule.slug for each in counters))
        return Done(ngettext("Reset %(count)d counter: %(rules)s.", "Reset %(count)d counters: %(rules)s.",
                             len(counters)) % {"count": len(counters), "rules": rules})  # fmt: skip

    def check(self, caller: Caller, done: Done) -> Outcome:
        after = read(Counters(self._counters))
        blocked = [each for each in after.counters if each.is_blocked]
        if after.problem:
            return unchecked(done)
        if blocked:
            rules = listed(dict.fromkeys(each.rule.slug for each in blocked))
            return Outcome(_("%(done)s Still blocked by: %(rules)s.") % {"done": done.text, "rules": rules}, took=False)
        text = _("%(done)s Checked: none of them blocks the caller now.")
        return Outcome(text % {"done": done.text})


@dataclass
class _CounterAct(Act):
    """An act on one of the caller's own counters, by its name."""

    permission = UNBLOCK
    name: str

    def found(self, caller: Caller) -> Counter:
        """Return the counter, and store it for the check. Raises ActRefused."""
        self._counter = counter_named(caller, self.name)
        return self._counter

    def check(self, caller: Caller, done: Done) -> Outcome:
        [after] = read(Counters([self._counter])).counters
        if after.verdict is None:
            return unchecked(done)
        text = (
            _("%(done)s Checked: %(left)s of %(capacity)s are free now.")
            if after.leases
            else _("%(done)s Checked: %(left)s of %(capacity)s are left now.")
        )
        return self.judged(text % {"done": done.text, "left": after.left, "capacity": after.capacity}, after)

    def judged(self, text: str, after: Counter) -> Outcome:
        """Return the outcome with this text about the counter's later state."""
        return Outcome(text)


@dataclass
class GiveBack(_CounterAct):
    """Refund units of one counter."""

    kind = "give"
    units: int

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        counter = self.found(caller)
        if counter.leases:
            raise ActRefused(_("Units in progress cannot be given back; end a lease."))
        if self.units < 1:
            raise ActRefused(_("Give back 1 unit or more."))
        self._given = give_back(counter, self.units)
        text = ngettext(
            "Gave back %(given)d of %(units)d unit: %(rule)s.",
            "Gave back %(given)d of %(units)d units: %(rule)s.",
            self.units,
        )
        return Done(text % {"given": self._given, "units": self.units, "rule": counter.rule.slug})

    def judged(self, text: str, after: Counter) -> Outcome:
        if self._given >= self.units or not after.used:
            return Outcome(text)
        rest = _("The rest was used before the current window, or is in use. It can only be reset.")
        return Outcome(f"{text} {rest}", took=False)


@dataclass
class EndLease(_CounterAct):
    """Release one lease of a concurrency counter."""

    kind = "end"
    began_us: int

    def do(self, caller: Caller, operator: Any, reason: str) -> Done:
        counter = self.found(caller)
        if not counter.leases:
            raise ActRefused(_("This counter holds no leases."))
        if not end_lease(counter, self.began_us):
            raise ActRefused(_("There is no such lease any more."))
        return Done(_("Ended a lease: %(rule)s.") % {"rule": counter.rule.slug})


def unchecked(done: Done) -> Outcome:
    """Return the outcome of an act after which the engine did not answer."""
    return Outcome(
        _("%(done)s It could not be checked, because Redis does not answer now.") % {"done": done.text}, took=False
    )


def counters_now(caller: Caller) -> Counters:
    """Return the caller's counters under the current rules."""
    rules = cache.latest_rules()
    return counters_of(caller, rules, grounds_of(caller, rules).entitlement)


def counter_named(caller: Caller, name: str) -> Counter:
    """Return one of the caller's own counters. Raises ActRefused."""
    found = counters_now(caller).named([name])
    if not found:
        raise ActRefused(_("There is no such counter of this caller's own."))
    return found[0]


def as_typed(multiplier: Decimal) -> str:
    """Return a multiplier without the trailing zeros of the database."""
    return f"{multiplier.normalize():f}"
