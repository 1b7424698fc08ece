"""References of rejections, and aliases: the rule that rejected, and the callers that are meant, by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import starmap
from typing import Any, ClassVar, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.utils.translation import gettext as _

from ..backend import get_engine
from ..conf import read_alias
from ..customers import customer_model, label_of
from ..engine.base import Alias, tail_of
from ..engine.usage.rejections import Rejection
from ..exceptions import EngineUnavailable
from ..identity import digest
from ..limiter.templates import missing
from ..models import TierAssignment, TopPartition
from ..rules import cache, inline
from ..rules.records import RuleRecord
from ..tenants import names_row, own_pk, rows_named
from ..usage.times import now, stored
from ..values.partitions import partition_names, value_in
from ..values.references import Reference
from ..values.terminal import without_controls

#: Maximum number of callers that are returned: two are alike once in many millions.
MAX_FOUND: Final = 5

#: Maximum number of rejections that are read: more than the lists of all shards keep.
MAX_READ: Final = 100_000

#: How far back top partitions are searched.
SPAN: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The rejection that a reference names, with the rule's exact spelling.

    callers: the aliases that it may mean, as far as they are known. problem: why they cannot be read now. found:
    whether an explanation has the counter that rejected.
    """

    MEMBERS: ClassVar = ("reference", "found", "problem")

    reference: Reference
    callers: tuple[str, ...] = ()
    problem: str = ""
    found: bool = False

    @property
    def is_shared(self) -> bool:
        """True if all callers share the counter."""
        return self.reference.is_of(everybody())

    @property
    def is_missing(self) -> bool:
        """True if the request lacked what the rule counts by."""
        return self.reference.is_of(missing())

    def is_of(self, rule: str, digest: str) -> bool:
        """Return whether it is about this rule's counter of the caller with this digest: rules can share digests."""
        return rule == self.reference.rule and self.reference.is_of(digest)


def recent(limit: int = MAX_READ, rule: str | None = None) -> list[Rejection]:
    """Return the latest rejections, at most `limit`; empty if the project's own engine has no such list.

    rule: of this rule only. Raises EngineUnavailable.
    """
    read = getattr(get_engine(), "recent_rejections", None)
    found: list[Rejection] = read(limit=limit, rule=rule) if read else []
    return found


def known_rules() -> list[str]:
    """Return the slugs of the current rules and of those in code, which references may name."""
    return [rule.slug for rule in _rules()]


def _rules() -> tuple[RuleRecord, ...]:
    return *cache.current_rules().rules, *inline.registered()


def rules_of(reference: Reference) -> list[str]:
    """Return the slugs of the rules that a reference may name: of current rules, else as it was typed."""
    return reference.rule_in(known_rules()) or [reference.rule]


def rule_of(reference: Reference) -> RuleRecord | None:
    """Return the rule that rejected; `None` = there is none any more."""
    return next((rule for rule in _rules() if rule.slug == reference.rule), None)


def digests_of(reference: Reference) -> list[str]:
    """Return the aliases that a reference may mean, the latest rejected first; empty = they are not known any more.

    The digests of all callers and of missing values are always known. Others are searched among recent rejections,
    and among the rule's top partitions: one call of Redis for each possible rule, and one query. Raises
    EngineUnavailable if Redis does not answer, and no top partition is meant.
    """
    if common := [each for each in (everybody(), missing()) if reference.is_of(each)]:
        return common
    rules, outage = rules_of(reference), None
    try:
        found: list[str] = [each.partition for rule in rules for each in recent(MAX_READ, rule)]
    except EngineUnavailable as error:
        found, outage = [], error
    rows = TopPartition.objects.filter(rule_slug__in=rules, start__gte=stored(now() - SPAN))
    # Exactly, or with the same letters in another case: similar characters are only compared among the recent ones.
    rows = rows.filter(partition__istartswith=reference.start).order_by("-tail")
    found += starmap(Alias.of, rows.values_list("partition", "tail").distinct())
    # Of two aliases of a caller, the one that can be read remains.
    tails = {each: each for each in found if tail_of(each)}
    digests = [tails.get(each, each) for each in dict.fromkeys(found) if reference.is_of(each)]
    if outage is not None and not digests:
        raise outage
    return digests[:MAX_FOUND]


def with_tail(alias: str) -> str:
    """Return the alias of a digest, if it is known from recent rejections or top callers."""
    if tail_of(alias):
        return alias
    with suppress(EngineUnavailable):
        found = next((each.partition for each in recent() if each.partition == alias and each.tail), None)
        if found:
            return found
    days = {"granularity": TopPartition.Granularity.DAY, "start__gte": stored(now() - SPAN - timedelta(days=1))}
    tail = TopPartition.objects.filter(partition=alias, tail__gt="", **days).values_list("tail", flat=True).first()
    return Alias.of(alias, tail or "")


def everybody() -> str:
    """Return the digest of all callers together, in rules that are not split."""
    return digest("")


#: The permission to see a name.
PERMISSION: Final = "django_ratelimiter.reveal_caller"


def name_of(reader: Any, row: Any) -> str:
    """Return the name of a user, customer or API key if this reader may see it (`None` = may), or ""."""
    if row is None:
        return ""
    needed = f"{row._meta.app_label}.view_{row._meta.model_name}", PERMISSION
    if reader is not None and not any(map(reader.has_perm, needed)):
        return ""
    return without_controls(str(row.get_username())) if isinstance(row, get_user_model()) else label_of(row)


class Name(NamedTuple):
    """The caller of an alias. kind: `user`, `ip`, …; `partition` if several values identify callers."""

    kind: str
    value: str

    @property
    def shown(self) -> str:
        """The value as text: of the hash of an API key only the start."""
        return f"{self.value[:8]}…" if self.kind == "api_key" and is_hash(self.value) else self.value


def is_hash(key: str) -> bool:
    """Return whether the value of an API key is its hash, and not what API_KEY_RESOLVER returns."""
    return re.fullmatch(r"[0-9a-f]{64}", key) is not None


def labelled(name: Name, labels: Mapping[tuple[str, str], str]) -> str:
    """Return a caller as text, with its label if that is known; an API key that is a row as its label alone."""
    label = labels.get(name)
    if not label or name.kind != "api_key":
        return _("%(name)s (id %(pk)s)") % {"name": label, "pk": name.value} if label else name.shown
    return f"{label} ({name.shown})" if is_hash(name.value) else label


def row_keys(names: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return which rows these users, customers and API keys are, each a kind and a value; see `row_key`.

    Another text for a value that is no row. Other kinds are left out.
    """
    kinds, of_kind = {kind for kind, _ in names}, {"user": get_user_model, "customer": customer_model}
    models: dict[str, Any] = {kind: find() for kind, find in of_kind.items() if kind in kinds}
    keys = dict[tuple[str, str], str]()
    for kind, value in names:
        if kind in (*of_kind, "api_key"):
            model = None if names_row(value) else models.get(kind)
            keys[kind, value] = f"{model._meta.label}:{own_pk(model, value)}" if model else value
    return keys


def labels_of(reader: Any, names: Collection[Name]) -> Mapping[tuple[str, str], str]:
    """Return what these callers are called, as far as this user may see it (`None` = may): as the name of a row.

    Of the hash of an API key: as the reason of its oldest assignment without an end, for who may view assignments.
    """
    keys = row_keys(names)
    rows = rows_named(keys.values())
    labels = {name: label for name, key in keys.items() if (label := name_of(reader, rows.get(key)))}
    hashes = [name.value for name in names if name.kind == "api_key" and is_hash(name.value)]
    acts = [f"django_ratelimiter.{act}_tierassignment" for act in ("view", "change")]
    if hashes and (reader is None or any(map(reader.has_perm, acts))):
        found = TierAssignment.objects.filter(api_key_hash__in=hashes, ends_at=None).exclude(reason="").order_by("-pk")
        labels |= {("api_key", key): reason for key, reason in found.values_list("api_key_hash", "reason")}
    return labels


def revealed_to(reader: Any, aliases: Iterable[str]) -> dict[str, Name]:
    """Return the names of these aliases that can be read and that REVEAL and the permission let this user see.

    `None` = may see all.
    """
    if reader is not None and not reader.has_perm(PERMISSION):
        return {}
    found = {alias: read_alias(alias) for alias in aliases}
    return {alias: _name(text) for alias, text in found.items() if text is not None}


def _name(partition: str) -> Name:
    names = partition_names(partition)
    if len(names) > 1:
        return Name("partition", partition)
    return Name(names[0], value_in(partition))
