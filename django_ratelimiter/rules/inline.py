"""Rules written in code: their rates, records like those of operators' rules, and their list for the admin."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2s
from typing import Final

from ..engine.limits import MAX_ENTRIES, Limit
from ..engine.registry import DEFAULT, SIMPLEST, STRICTEST
from .records import LimitRecord, RuleRecord, TierRecord

#: The prefix of the slugs of these rules; an operator's slug cannot contain a colon.
PREFIX: Final = "code:"
#: Maximum number of rules that are listed and counted in reports: code may make any number of groups.
_MAX_RULES: Final = 1_000

#: "100/h", "10/30s", "100/10" (seconds); other periods are left to Limit.parse.
_RATE = re.compile(r"(?P<quota>[0-9]+)/(?P<count>[0-9]*)(?P<unit>[smhd]?)", re.ASCII)
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

_registered: dict[str, RuleRecord] = {}

#: The periods in DRF's documentation, and other common words that it reads correctly.
_PERIODS: Final = {
    1: ("s", "sec", "secs", "second", "seconds"),
    60: ("m", "min", "mins", "minute", "minutes"),
    3_600: ("h", "hr", "hrs", "hour", "hours"),
    86_400: ("d", "day", "days"),
}
_SECONDS: Final = {word: seconds for seconds, words in _PERIODS.items() for word in words}


def registered() -> tuple[RuleRecord, ...]:
    """Return this process's rules written in code by slug, with their latest limits. Some appear after a request."""
    return tuple(sorted(_registered.values(), key=lambda rule: rule.slug))


def register(rule: RuleRecord) -> None:
    """Add a rule to this list."""
    if rule.slug in _registered or len(_registered) < _MAX_RULES:
        _registered[rule.slug] = rule


def is_listed(slug: str) -> bool:
    """Return whether usage is counted under this slug: of an operator's rule, or of a rule in code in this list."""
    return slug in _registered or not slug.startswith(PREFIX)


def label_of(rule: RuleRecord, tier: TierRecord | None) -> str | None:
    """Return the label that usage of a rule is counted under; `None` = it is not."""
    return f"{rule.slug}|{tier or ''}" if is_listed(rule.slug) else None


def usual_cost_of(rule: RuleRecord) -> int:
    """Return the cost that usage takes for granted; a rule in code may have another one for each request."""
    return 1 if rule.slug.startswith(PREFIX) else rule.cost


def identity_of(rule: RuleRecord) -> str:
    """Return the identity whose callers a rule counts; "" = none, several, or a rule in code, which has own values."""
    return "" if rule.slug.startswith(PREFIX) or len(rule.partition_by) != 1 else rule.partition_by[0]


@lru_cache(maxsize=_MAX_RULES)
def slug_of(*parts: str) -> str:
    """Return the slug of a rule, such as "code:shop.views.order". A long one is cut, and a digest keeps it unique."""
    whole = ".".join(filter(None, parts))
    text = re.sub(r"[^\w.:-]+", "-", whole, flags=re.ASCII).strip("-.")
    room = 50 - len(PREFIX)  # as long as operators' slugs, so that usage reports contain all of it
    if text != whole or len(text) > room:
        text = f"{text[-(room - 9) :]}-{blake2s(whole.encode()).hexdigest()[:8]}"
    return PREFIX + text


@lru_cache(maxsize=_MAX_RULES)
def parse_rate(rate: str) -> tuple[int, float]:
    """Return quota and window in seconds of "100/h", "10/30s", "100/minute", "10 per 30 seconds"; quota 0 = reject all.

    Raises ValueError for anything else.
    """
    match = _RATE.fullmatch(rate.strip().lower())
    if match is None or not (match["count"] or match["unit"]):
        quota, _, rest = rate.strip().partition("/")
        if quota.strip("0") == "" and quota:  # a Limit needs a quota, so parse only the window
            return 0, float(Limit.parse(f"1/{rest}").window or 0)
        limit = Limit.parse(rate)
        return limit.quota, float(limit.window or 0)
    window = int(match["count"] or 1) * _UNITS[match["unit"]]
    if not window:
        raise ValueError(f"rate: {rate!r} has no window; write one above 0, as in '100/minute'.")
    return int(match["quota"]), window


@lru_cache(maxsize=_MAX_RULES)
def rule_of(
    slug: str,
    quota: int,
    window: float,
    split_by: str,
    *,
    algorithm: str | None = None,
    mode: str = "enforce",
    methods: frozenset[str] = frozenset(),
    missing_partition: str = "skip",
    failure_policy: str = "local",
) -> RuleRecord:
    """Return a rule with one limit: `quota` requests per `window` seconds, for each value of the name `split_by`.

    algorithm: `None` = the log if it may store that many requests, else the counter, whose size is constant.
    A quota of 0 rejects every request. Raises ValueError if it cannot be enforced.
    """
    if quota > 0:
        limit = Limit(quota, window, algorithm or (STRICTEST if quota <= MAX_ENTRIES else DEFAULT))
    else:
        limit = Limit(1, window, SIMPLEST)  # a separate counter from other rates
    return RuleRecord(
        slug=slug,
        name=slug.removeprefix(PREFIX),
        mode=mode,
        methods=methods,
        partition_by=(split_by,),
        missing_partition=missing_partition,
        failure_policy=failure_policy,
        cost=1 if quota > 0 else limit.capacity + 1,
        count_refusals=quota < 1,  # so that no remaining quota is shown
        limits={None: (LimitRecord(limit),)},
    )


@lru_cache(maxsize=1_000)
def rate_from(text: str) -> tuple[int, int] | None:
    """Return the requests and seconds of a rate in DRF's format, such as "10/min"; `None` if it is none."""
    match = re.fullmatch(r"\s*(?P<count>-?[0-9_]+)\s*/\s*(?P<period>[a-z]+)\s*", text, re.ASCII)
    if match is None or match["period"] not in _SECONDS:
        return None
    return int(match["count"]), _SECONDS[match["period"]]
