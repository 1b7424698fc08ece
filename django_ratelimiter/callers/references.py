"""From the reference that a customer reads out to the callers whom it may mean."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ..exceptions import EngineUnavailable
from ..models import TopPartition
from ..usage.refusals import recent
from ..usage.times import now, stored
from ..values.references import Reference

#: Recent refusals that are looked through.
MAX_READ: Final = 1_000

#: Callers that are returned: two are alike once in many millions.
MAX_FOUND: Final = 5

#: How far back top partitions are looked through.
SPAN: Final = timedelta(days=7)


def digests_of(reference: Reference) -> list[str]:
    """Return the digests that a reference may stand for, the latest rejected first; empty = they are known no more.

    They are looked for among recent rejections, and among the rule's top partitions. One call to Redis, one query.
    """
    try:
        found = [each.partition for each in recent(MAX_READ, reference.rule)]
    except EngineUnavailable:
        found = []
    rows = TopPartition.objects.filter(rule_slug=reference.rule, start__gte=stored(now() - SPAN))
    # As it was written, or in other letters: what looks alike is told apart among the recent ones only.
    found += rows.filter(partition__istartswith=reference.start).values_list("partition", flat=True).distinct()
    return [digest for digest in dict.fromkeys(found) if reference.is_of(digest)][:MAX_FOUND]
