"""Rejections that reveal a proxy which is not trusted: those of one address that name different callers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic
from typing import Final

from django.http import HttpRequest

from ..identity.proxies import forwarding, trusting
from ..rules.heartbeats import pulse
from ..rules.records import RuleRecord

logger = logging.getLogger("django_ratelimiter")

#: Maximum number of rejections that a process examines in a minute, and of addresses that it remembers.
MAX_EXAMINED: Final = 1_000

#: By an address that is not trusted: the first caller that it named.
named: Final[dict[str, str]] = {}
#: The current minute, and how many rejections may still be examined in it.
_minute, _left = 0, MAX_EXAMINED


def examine(request: HttpRequest, rules: Iterable[RuleRecord]) -> None:
    """Report, once, that a request which these rules reject names another caller than an earlier one of its address."""
    global _minute, _left
    minute = int(monotonic() // 60)
    if minute != _minute:
        _minute, _left = minute, MAX_EXAMINED
    if _left <= 0 or not any(rule.asks_for_address for rule in rules):
        return
    _left -= 1
    found = forwarding(request)
    if found is None:
        return
    if len(named) >= MAX_EXAMINED:
        named.clear()
    if named.setdefault(found.address, found.caller) != found.caller and pulse.note_proxy(found.proxy):
        logger.warning(
            "Rejected requests of one address name different callers in %s. If it is your proxy, all its callers share "
            "one counter: set RATELIMITER['TRUSTED_PROXIES'] to %s. If not, a caller invents these names.",
            found.field,
            trusting(found.proxy),
        )
