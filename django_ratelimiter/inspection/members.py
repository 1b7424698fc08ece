"""The callers of a customer, its users and keys, each with what rejects it now. The setting CUSTOMER_CALLERS says who.

The number of queries, and of calls of the engine, does not depend on how many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from ..conf import settings
from ..customers import key_model
from ..exceptions import EngineUnavailable, raised_at
from ..identity import digest
from ..logs import logger
from ..rules import inline
from ..rules.ruleset import RuleSet
from ..rules.tiers import Entitlement
from ..values.partitions import encode_partition
from .caller import Caller, UnknownCaller, member_in, members_of
from .counters import Blocking, Counter, counters_of_members
from .grounds import Grounds, grounds_of, may_be_denied
from .references import recent

#: Maximum number of callers of a customer that are read.
MAX_CALLERS: Final = 10_000

#: Maximum number of them that are looked at.
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

    unseen: in words, the first of those that were not looked at or cannot be read, and why; "" = none.
    """

    found: Sequence[Member] = ()
    unseen: str = ""

    @property
    def blocked(self) -> list[Member]:
        """Those that are rejected now."""
        return [each for each in self.found if each.is_blocked]


def read_members(customer: Caller, rules: RuleSet, entitlement: Entitlement) -> Members:
    """Return the callers of a customer; without CUSTOMER_CALLERS none, which is a problem if rules count by them."""
    if settings.CUSTOMER_CALLERS is None:
        active = (rule for rule in (*rules.rules, *inline.registered()) if not rule.is_off)
        are_counted = any({"user", "api_key"} & {*rule.partition_by} for rule in active)
        problem = _("RATELIMITER['CUSTOMER_CALLERS'] does not say who they are.")
        return Members(unseen=_unknown(problem) if are_counted else "")
    try:
        named, unread = dict[tuple[str, str], None](), list[str]()
        function: Any = import_string(settings.CUSTOMER_CALLERS)
        model = key_model()
        for pair in islice(function(customer.customer), MAX_CALLERS + 1):
            try:
                named[member_in(pair, model)] = None
            except UnknownCaller as error:
                unread.append(str(error))
        lately = {row.partition for row in recent()}
        rejected = [each for each in named if lately and digest(encode_partition([each])) in lately]
        looked_at = list(dict.fromkeys([*rejected, *named]))[:MAX_LOOKED_AT]
        callers, unknown = members_of(customer, looked_at)
    except EngineUnavailable as error:
        return Members(unseen=_unknown(error))
    except Exception as error:  # the project's own code
        problem = f"RATELIMITER['CUSTOMER_CALLERS'] failed: {raised_at(error)}"
        logger.error("%s", problem)
        return Members(unseen=_unknown(problem))
    grounds = grounds_of(callers, rules)
    found = counters_of_members(callers, rules, [each.entitlement for each in grounds], entitlement)
    members = [
        Member(caller, each, own.counters, own.blocking if rules.enforced and each.exempt is False else Blocking())
        for caller, each, own in zip(callers, grounds, found, strict=True)
    ]
    failed = "RATELIMITER['EXEMPT'] has failed (see the log)." if any(each.exempt is None for each in grounds) else ""
    problem = next((each.problem for each in found if each.problem), failed)
    text = _("Only %s of its users and keys were looked at: those rejected lately, then others.") % len(looked_at)
    unseen = [*([_unknown(problem)] if problem else []), *([text] if len(looked_at) < len(named) else [])]
    return Members(members, " ".join(filter(None, [may_be_denied(callers), *unseen, *unread, *unknown][:5])))


def _unknown(why: object) -> str:
    return _("Whether its users and keys are rejected is not known: %s") % why
