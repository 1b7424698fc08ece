"""From the reference that a customer reads aloud to the callers that it may mean."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.utils.translation import gettext as _

from ..exceptions import EngineUnavailable
from ..identity import digest
from ..limiter.templates import missing
from ..models import TopPartition
from ..rules import cache, inline
from ..rules.records import RuleRecord
from ..usage.live.rejections import recent
from ..usage.times import now, stored
from ..values.references import Reference, references_in
from .logline import LoggedRefusal, about_rule, parse_log_line
from .question import Question, QuestionError

#: Number of recent rejections that are searched.
MAX_READ: Final = 1_000

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


def as_in_force(logged: LoggedRefusal) -> LoggedRefusal:
    """Return it with the rule's exact spelling: customers ignore case."""
    rule = rules_of(Reference(logged.rule, logged.digest))[0]
    return logged._replace(rule=rule, rules=tuple(rule if each == logged.rule else each for each in logged.rules))


def question_about(text: str, question: Question) -> tuple[LoggedRefusal, Question]:
    """Return the content of a reference, response or log line, and the question about such a request.

    Raises QuestionError.
    """
    logged = parse_log_line(text, known_rules())
    if logged is None:
        text = _("This is not the reference of a rejection. Enter it as “export#eJL8d1F2”.")
        raise QuestionError("reference", text)
    logged = as_in_force(logged)
    return logged, asked_of(logged, question)


def asked_of(logged: LoggedRefusal, question: Question) -> Question:
    """Return the question about a request that the logged rule matches, unless the question names a request itself."""
    rule = next((rule for rule in _rules() if rule.slug == logged.rule), None)
    return question if rule is None else about_rule(question, rule)


def find_reference(text: str) -> Reference | None:
    """Return the reference in a text; if several words may be one, the first whose caller is known.

    Else the first that names a rule; `None` if no word may be one.
    """
    found = references_in(text)
    if len(found) > 1:
        known = known_rules()
        found.sort(key=lambda each: not _is_of_one(each, known))
        return next((each for each in found if digests_of(each)), found[0])
    return found[0] if found else None


def digests_of(reference: Reference) -> list[str]:
    """Return the digests that a reference may mean, the latest rejected first; empty = they are not known any more.

    The digests of all callers and of missing values are always known. Others are searched among recent rejections,
    and among the rule's top partitions: one call of Redis for each possible rule, and one query.
    """
    if common := [each for each in (everybody(), missing()) if reference.is_of(each)]:
        return common
    rules = rules_of(reference)
    try:
        found = [each.partition for rule in rules for each in recent(MAX_READ, rule)]
    except EngineUnavailable:
        found = []
    rows = TopPartition.objects.filter(rule_slug__in=rules, start__gte=stored(now() - SPAN))
    # Exactly, or with the same letters in another case: similar characters are only compared among the recent ones.
    found += rows.filter(partition__istartswith=reference.start).values_list("partition", flat=True).distinct()
    return [each for each in dict.fromkeys(found) if reference.is_of(each)][:MAX_FOUND]


def _is_of_one(reference: Reference, slugs: list[str]) -> bool:
    return any(slug.lower() == reference.rule.lower() for slug in slugs)


def everybody() -> str:
    """Return the digest of all callers together, in rules that are not split."""
    return digest("")
