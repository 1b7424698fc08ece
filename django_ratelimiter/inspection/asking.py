"""The question about a rejected request, and the arguments of `manage.py ratelimit explain`."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any, Final

from django.utils.translation import gettext as _

from ..conf import settings
from ..exceptions import EngineUnavailable
from ..values.references import Reference, parse_reference
from .caller import by_key, is_hash
from .question import Question, QuestionError, pairs, parse_curl
from .references import Name, Rejected, digests_of, known_rules, revealed_to, rule_of, rules_of


def asked(question: Question, curl: str, text: str, reader: Any = None) -> tuple[Question, Rejected | None]:
    """Return the question about the request in a curl command, and in a text with the reference of a rejection.

    Both may be empty. The caller of a reference is added if this user may see its name (`None` = may see everything),
    unless the question names a caller. Also returns what the reference names. Raises QuestionError.
    """
    question = parse_curl(curl, question) if curl else question
    if not text:
        return question, None
    reference = parse_reference(text, known_rules())
    if reference is None:
        problem = _("This is not the reference of a rejection. Enter it as “export#eJL8d1F2”.")
        raise QuestionError("reference", problem)
    rejected = Rejected(reference._replace(rule=rules_of(reference)[0]))
    question = _about_rule(question, rejected.reference)
    if rejected.is_shared or rejected.is_missing:
        return question, rejected
    try:
        rejected = rejected._replace(callers=tuple(digests_of(rejected.reference)))
    except EngineUnavailable as error:
        return question, rejected._replace(problem=str(error))
    names = [*revealed_to(reader, rejected.callers).values()]
    if len(rejected.callers) == len(names) == 1 and not names_caller(question):
        question = replace(question, **asked_of_caller(names[0]))
    return question, rejected


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


def _about_rule(question: Question, reference: Reference) -> Question:
    """Return the question about a request that the rule matches, unless the question names a request itself."""
    rule = rule_of(reference)
    if rule is None or question.path or question.view:
        return question
    path = rule.path if rule.path_kind in ("exact", "prefix") else ""
    method = question.method if not rule.methods or question.method in rule.methods else min(rule.methods)
    return replace(question, method=method, path=path, view=rule.view_name, scope=question.scope or rule.scope)


#: Options with one text, and what that is.
_TEXTS: Final = {
    "view": "The name of a view, instead of a path.",
    "user": "A login name or a primary key.",
    "api_key": "An API key as callers send it, or the hash of a known key.",
    "ip": "The IP address that connects to the site.",
    "scope": "A scope that your code asks for, besides those that the view is known to name.",
}


def add_question(parser: ArgumentParser) -> None:
    """Add the arguments of a question."""
    path = "A path of this site, with or without a query, or a URL."
    for name, default, text in (("method", "GET", "Such as GET."), ("path", "", path)):
        parser.add_argument(name, nargs="?", default=default, metavar=name.upper(), help=text)
    for name, text in _TEXTS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help=text)
    identity = "A value that rules count by, such as tenant=acme or header:X-Org=acme. May be repeated."
    parser.add_argument("--identity", action="append", default=[], metavar="NAME=VALUE", help=identity)
    parser.add_argument("--curl", default="", metavar="COMMAND", help="A curl command, instead of METHOD and PATH.")
    reference = "The reference of a rejection, such as export#eJL8d1F2, or a text with it: marks its counter."
    parser.add_argument("--reference", default="", metavar="TEXT", help=reference)


def question_from(options: dict[str, Any]) -> tuple[Question, Rejected | None]:
    """Return the question in these arguments, and what the reference names. Raises QuestionError."""
    question = Question(
        method=options["method"],
        path=options["path"],
        identities=dict(pairs(options["identity"], "=", "identities")),
        **{name: options[name] for name in _TEXTS},
    )
    return asked(question, options["curl"], options["reference"])
