"""The callers of a customer, its users and keys, each with what rejects it now. The setting CUSTOMER_CALLERS says who.

The number of queries, and of calls of the engine, does not depend on how many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from django.utils.translation import gettext as _

from ..conf import settings
from ..customers import callers_of
from ..exceptions import EngineUnavailable, raised_at
from ..identity import digest
from ..logs import logger
from ..rules import inline
from ..rules.ruleset import RuleSet
from ..values.partitions import encode_partition
from .caller import Caller, UnknownCaller, members_of
from .counters import Blocking, Counter, counters_of_members
from .grounds import Grounds, grounds_of
from .references import recent

#: Maximum number of a customer's callers that are looked at.
MAX_LOOKED_AT: Final = 100


class Member(NamedTuple):
    """One of a customer's callers. counters: its own, without those of the customer."""

    caller: Caller
    grounds: Grounds
    counters: Sequence[Counter]
    blocking: Blocking

    @property
    def is_blocked(self) -> bool:
        """True if requests of it are rejected now."""
        access = self.grounds.access
        return bool(self.blocking.own) if access is None else access.action == "deny"


class Members(NamedTuple):
    """The callers of a customer that were looked at, those rejected lately first.

    are_all: there are no others. problem: why it is not known who they are, or how they stand.
    """

    found: Sequence[Member] = ()
    are_all: bool = True
    problem: str = ""

    @property
    def blocked(self) -> list[Member]:
        """Those that are rejected now."""
        return [each for each in self.found if each.is_blocked]

    @property
    def unseen(self) -> str:
        """Which of them were not looked at, and why; "" = none."""
        if self.problem:
            return _("Whether its users and keys are rejected is not known: %s") % self.problem
        text = _("Only %s of its users and keys were looked at: those rejected lately, then others.")
        return "" if self.are_all else text % len(self.found)


def read_members(customer: Caller, rules: RuleSet) -> Members:
    """Return the callers of a customer; without CUSTOMER_CALLERS none, which is a problem if rules count by them."""
    if settings.CUSTOMER_CALLERS is None:
        active = (rule for rule in (*rules.rules, *inline.registered()) if not rule.is_off)
        are_counted = any({"user", "api_key"} & {*rule.partition_by} for rule in active)
        return Members(problem=_("RATELIMITER['CUSTOMER_CALLERS'] does not say who they are.") if are_counted else "")
    try:
        named = dict.fromkeys(callers_of(customer.customer))
        lately = {row.partition for row in recent()}
        first = [each for each in named if lately and digest(encode_partition([each])) in lately]
        looked_at = list(dict.fromkeys([*first, *named]))[:MAX_LOOKED_AT]
        callers = members_of(customer, looked_at)
    except EngineUnavailable as error:
        return Members(problem=str(error))
    except Exception as error:  # the project's own code
        why = error if isinstance(error, UnknownCaller) else raised_at(error)
        problem = f"RATELIMITER['CUSTOMER_CALLERS'] failed: {why}"
        logger.error("%s", problem)
        return Members(problem=problem)
    grounds = grounds_of(callers, rules)
    found = counters_of_members(callers, rules, [each.entitlement for each in grounds])
    members = [
        Member(caller, each, own.counters, own.blocking if rules.enforced and each.exempt is False else Blocking())
        for caller, each, own in zip(callers, grounds, found, strict=True)
    ]
    failed = "RATELIMITER['EXEMPT'] has failed (see the log)." if any(each.exempt is None for each in grounds) else ""
    problem = next((each.problem for each in found if each.problem), failed)
    return Members(members, len(members) == len(named), problem)
