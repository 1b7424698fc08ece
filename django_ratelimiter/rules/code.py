"""Rules written in code: records like those of operators' rules, and the list of them that the admin shows."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2s
from typing import Final

from ..engine.limits import MOST_ENTRIES, Algorithm, Limit
from .ruleset import LimitRecord, RuleRecord

#: What the slugs of these rules begin with; no operator's slug can hold a colon.
PREFIX: Final = "code:"
#: As long as the slugs of operators' rules, so that usage is reported under the whole of it.
_SLUG_LENGTH: Final = 50
#: A rate that depends on the request may have any number of values; only so many rules are kept.
_MOST_RULES: Final = 1_000

_UNFIT = re.compile(r"[^\w.:-]+", re.ASCII)

_registered: dict[str, RuleRecord] = {}


def registered() -> tuple[RuleRecord, ...]:
    """The rules of this process's code by slug, with their latest limits. Some are known only once they are met."""
    return tuple(sorted(_registered.values(), key=lambda rule: rule.slug))


def register(rule: RuleRecord) -> None:
    """Keep a rule to be shown."""
    if rule.slug in _registered or len(_registered) < _MOST_RULES:
        _registered[rule.slug] = rule


def slug_of(*parts: str) -> str:
    """The slug of a rule, such as "code:shop.views.order". What would not fit is cut, and told apart by a digest."""
    whole = ".".join(filter(None, parts))
    text = _UNFIT.sub("-", whole).strip("-.")
    room = _SLUG_LENGTH - len(PREFIX)
    if text != whole or len(text) > room:
        text = f"{text[-(room - 9) :]}-{blake2s(whole.encode()).hexdigest()[:8]}"
    return PREFIX + text


@lru_cache(maxsize=_MOST_RULES)
def rule_of(
    slug: str,
    quota: int,
    window: float,
    split_by: str,
    *,
    algorithm: str = Algorithm.SLIDING_WINDOW_COUNTER,
    mode: str = "enforce",
    methods: frozenset[str] = frozenset(),
) -> RuleRecord:
    """A rule of one limit: `quota` requests per `window` seconds, for each value of what `split_by` calls.

    A quota of 0 refuses every request. Raises ValueError for what cannot be enforced.
    """
    limit = Limit(max(quota, 1), window, algorithm)
    return RuleRecord(
        slug=slug,
        name=slug.removeprefix(PREFIX),
        mode=mode,
        methods=methods,
        path="",
        path_kind="any",
        view_name="",
        scope="",
        partition_by=(split_by,),
        missing_partition="skip",
        failure_policy="local",
        cost=1 if quota > 0 else limit.capacity + 1,
        priority=100,
        message="",
        count_refusals=quota < 1,  # so that none is said to remain
        limits={None: (LimitRecord(limit),)},
    )


def exact_algorithm(quota: int) -> str:
    """The log where it is allowed to keep so many requests, else the counter, whose size does not grow."""
    return Algorithm.SLIDING_WINDOW_LOG if quota <= MOST_ENTRIES else Algorithm.SLIDING_WINDOW_COUNTER
