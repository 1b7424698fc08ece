"""From the reference that a customer reads out to the callers whom it may mean."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ..exceptions import EngineUnavailable
from ..identity import digest
from ..limiter.templates import missing
from ..models import TopPartition
from ..rules import cache, inline
from ..usage.refusals import recent
from ..usage.times import now, stored
from ..values.references import Reference

#: Recent refusals that are looked through.
MAX_READ: Final = 1_000

#: Callers that are returned: two are alike once in many millions.
MAX_FOUND: Final = 5

#: How far back top partitions are looked through.
SPAN: Final = timedelta(days=7)


def rules_of(reference: Reference) -> list[str]:
    """Return the slugs of the rules that a reference may name: as they are in force, else as it was typed."""
    known = [rule.slug for rule in (*cache.current_rules().rules, *inline.registered())]
    return reference.rule_in(known) or [reference.rule]


def digests_of(reference: Reference) -> list[str]:
    """Return the digests that a reference may stand for, the latest rejected first; empty = they are known no more.

    That of everybody, or of nobody in particular, is known by itself. Others are looked for among recent rejections,
    and among the rule's top partitions: one call to Redis for each rule that fits, one query.
    """
    if common := [each for each in (everybody(), missing()) if reference.is_of(each)]:
        return common
    rules = rules_of(reference)
    try:
        found = [each.partition for rule in rules for each in recent(MAX_READ, rule)]
    except EngineUnavailable:
        found = []
    rows = TopPartition.objects.filter(rule_slug__in=rules, start__gte=stored(now() - SPAN))
    # As it was written, or in other letters: what looks alike is told apart among the recent ones only.
    found += rows.filter(partition__istartswith=reference.start).values_list("partition", flat=True).distinct()
    return [each for each in dict.fromkeys(found) if reference.is_of(each)][:MAX_FOUND]


def everybody() -> str:
    """Return the digest of all callers together: of rules that are split by nothing."""
    return digest("")
