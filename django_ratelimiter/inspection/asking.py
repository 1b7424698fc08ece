"""The question about a request that was rejected: what its rule matches, and its caller, if that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _

from ..conf import settings
from ..exceptions import EngineUnavailable
from ..values.references import DIGITS
from .caller import by_key, is_hash
from .curl import parse_curl
from .explanation import SEES_TIERS
from .names import Name, revealed_to
from .question import Question, QuestionError
from .references import ParsedRejection, as_in_force, digests_of, known_rules, parse_log_line, rule_of


def asked(question: Question, curl: str, reference: str, reader: Any = None) -> tuple[Question, ParsedRejection | None]:
    """Return the question about the request in a curl command, or in a reference, a response or a line of the log.

    Both may be empty. The caller of a reference is added if this user may see its name (`None` = may see everything),
    unless the question names a caller. Also returns the content of the reference. Raises QuestionError.
    """
    question = parse_curl(curl, question) if curl else question
    if not reference:
        return question, None
    logged = parse_log_line(reference, known_rules())
    if logged is None:
        text = _("This is not the reference of a rejection. Enter it as “export#eJL8d1F2”.")
        raise QuestionError("reference", text)
    logged = as_in_force(logged)
    question = _about_rule(question, logged)
    try:
        logged = logged._replace(callers=tuple(_callers(logged, reader)))
    except EngineUnavailable as error:
        return question, logged._replace(problem=str(error))
    names = [*revealed_to(reader, logged.callers).values()]
    if len(logged.callers) == len(names) == 1 and not names_caller(question):
        question = replace(question, **asked_of_caller(names[0]))
    return question, logged


def names_caller(question: Question) -> bool:
    """Return whether the question says who the caller is."""
    known = question.user, question.api_key, question.ip, question.identities
    return any(known) or any(
        name.lower() in ("authorization", "cookie", settings.API_KEY_HEADER.lower())
        for name, _value in question.headers
    )


def asked_of_caller(name: Name) -> dict[str, Any]:
    """Return the data for a question about this caller."""
    if name.kind not in ("user", "ip", "api_key") or (name.kind == "api_key" and not is_hash(name.value)):
        return {}
    return {name.kind: by_key(name.value) if name.kind == "user" else name.value}


def _about_rule(question: Question, logged: ParsedRejection) -> Question:
    """Return the question about a request that the logged rule matches, unless the question names a request itself."""
    rule = rule_of(logged)
    if rule is None or question.path or question.view:
        return question
    path = rule.path if rule.path_kind in ("exact", "prefix") else ""
    method = question.method if not rule.methods or question.method in rule.methods else min(rule.methods)
    return replace(question, method=method, path=path, view=rule.view_name, scope=question.scope or rule.scope)


def _callers(logged: ParsedRejection, reader: Any) -> Sequence[str]:
    """Return the callers that are meant, for readers who may name callers. Raises EngineUnavailable."""
    if logged.names_nobody or not (reader is None or reader.has_perm(SEES_TIERS)):
        return ()
    return [logged.digest] if len(logged.digest) > DIGITS else digests_of(logged.reference)
