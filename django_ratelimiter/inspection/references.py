"""References of rejections, and lines of the log: the rules that rejected, and the callers that may be meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from itertools import starmap
from typing import Final, NamedTuple

from ..engine.base import Alias, tail_of
from ..exceptions import EngineUnavailable
from ..identity import digest
from ..limiter.templates import missing
from ..models import TopPartition
from ..rules import cache, inline
from ..rules.records import RuleRecord
from ..usage.live.rejections import MAX_READ, recent
from ..usage.times import now, stored
from ..values.bounds import MAX_TEXT, json_from
from ..values.digests import alias_of
from ..values.references import Reference, parse_reference, references_in

_MESSAGE: Final = re.compile(r"A request was rejected by ([\w:.-]+(?:, [\w:.-]+)*)\.(?=\s|$|\")")
#: `rule=export`, `"rule": "export"` or `rule='export'`, as formatters write the attributes of a record.
_ATTRIBUTE: Final = re.compile(r"""["']?\b(rule|tier|partition|version|reference)["']?\s*[=:]\s*["']?([\w:.#-]+)""")
_NONE: Final = ("None", "null", "")


class ParsedRejection(NamedTuple):
    """The content of a line. rules: those that rejected the request. digest: of the caller, in the names of keys.

    For a reference, `digest` is only its start. callers: the aliases that it may mean, as far as they are known and the
    reader may see them. problem: why they cannot be read now.
    """

    rules: tuple[str, ...]
    rule: str = ""
    tier: str = ""
    digest: str = ""
    version: str = ""
    callers: tuple[str, ...] = ()
    problem: str = ""

    @property
    def reference(self) -> Reference:
        """Its reference."""
        return Reference(self.rule, self.digest)

    @property
    def names_nobody(self) -> bool:
        """True if it means no single caller."""
        return not self.digest or any(map(self.reference.is_of, (everybody(), missing())))

    def is_of(self, rule: str, digest: str) -> bool:
        """Return whether it is about this rule's counter of the caller with this digest: rules can share digests.

        False if the line names no caller.
        """
        if rule not in self.rules or not self.digest:
            return False
        return digest == self.digest or self.reference.is_of(digest)


def parse_log_line(text: str, slugs: Iterable[str] = ()) -> ParsedRejection | None:
    """Return the content of the line; `None` if it is not about a rejected request, or longer than MAX_TEXT.

    The body of a response to one is accepted as well, and so is its reference alone.
    It contains neither the path nor the caller, only the digest; see `limiter/events.py`. slugs: of
    rules that its reference may name, if other words look like one.
    """
    first = text.split(None, 1)[:1]
    if len(text) > MAX_TEXT:
        return None
    if first and first[0].rpartition("/")[2] == "curl":  # its data may look like a line
        return None
    found = _attributes(text)
    reference = parse_reference(found.get("reference", "")) or parse_reference(text, slugs)
    if reference is not None and not found.get("partition"):
        found |= {"rule": reference.rule, "partition": reference.start}
    message = _MESSAGE.search(found.pop("message", "") or text)
    rules = tuple(message[1].split(", ")) if message else ()
    if not rules and not found.get("rule"):
        return None
    rule = found.get("rule") or rules[0]
    return ParsedRejection(
        rules or (rule,), rule, found.get("tier", ""), alias_of(found.get("partition", "")), found.get("version", "")
    )


def _attributes(text: str) -> dict[str, str]:
    try:
        found = json_from(text[text.index("{") :])
    except ValueError:
        found = None
    if isinstance(found, dict):
        pairs = {name: str(value) for name, value in found.items() if not isinstance(value, dict | list)}
    else:
        pairs = dict(_ATTRIBUTE.findall(text))
    return {name: value for name, value in pairs.items() if value not in _NONE}


#: Maximum number of callers that are returned: two are alike once in many millions.
MAX_FOUND: Final = 5

#: How far back top partitions are searched.
SPAN: Final = timedelta(days=7)


def known_rules() -> list[str]:
    """Return the slugs of the current rules and of those in code, which references may name."""
    return [rule.slug for rule in _rules()]


def _rules() -> tuple[RuleRecord, ...]:
    return *cache.current_rules().rules, *inline.registered()


def rules_of(reference: Reference) -> list[str]:
    """Return the slugs of the rules that a reference may name: of current rules, else as it was typed."""
    return reference.rule_in(known_rules()) or [reference.rule]


def as_in_force(logged: ParsedRejection) -> ParsedRejection:
    """Return it with the rule's exact spelling: customers ignore case."""
    rule = rules_of(logged.reference)[0]
    return logged._replace(rule=rule, rules=tuple(rule if each == logged.rule else each for each in logged.rules))


def rule_of(logged: ParsedRejection) -> RuleRecord | None:
    """Return the rule that rejected; `None` = there is none any more."""
    return next((rule for rule in _rules() if rule.slug == logged.rule), None)


def find_reference(text: str) -> Reference | None:
    """Return the reference in a text; if several words may be one, the first whose caller is known.

    Else the first that names a rule; `None` if no word may be one. Raises EngineUnavailable.
    """
    found = references_in(text)
    if len(found) > 1:
        known = [slug.lower() for slug in known_rules()]
        found.sort(key=lambda each: each.rule.lower() not in known)
        return next((each for each in found if digests_of(each)), found[0])
    return found[0] if found else None


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
