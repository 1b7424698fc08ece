"""An explanation on the command line: arguments, lines, and JSON."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from .curl import with_curl
from .explanation import Explanation, RuleExplanation
from .logline import LoggedRefusal
from .question import Question, QuestionError
from .words import (
    bypass_in_words,
    counter_in_words,
    doubts_of,
    headline_of,
    is_among,
    logged_in_words,
    reason_in_words,
    rows_in_words,
    shadow_in_words,
    tier_in_words,
)


def add_question(parser: ArgumentParser) -> None:
    """Add the arguments of a question."""
    parser.add_argument("method", nargs="?", default="GET", metavar="METHOD", help="Such as GET.")
    parser.add_argument("path", nargs="?", default="", metavar="PATH", help="A path of this site, or a URL.")
    for name, text in (
        ("view", "The name of a view, instead of a path."),
        ("user", "A login name or a primary key."),
        ("api-key", "An API key as callers send it, or the hash of a known key."),
        ("ip", "The IP address that connects to the site."),
        ("session", "A session key."),
        ("scope", "A scope that your code asks for."),
        ("body", "The body of the request."),
        ("gateway", "The route of a view that gateways ask, such as /gateway/: for a request to another server."),
    ):
        parser.add_argument(f"--{name}", default="", help=text)
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="A header field. May be repeated."
    )
    identity = "A value that rules count by, such as tenant=acme or field:email=a@example.org. May be repeated."
    parser.add_argument("--identity", action="append", default=[], metavar="NAME=VALUE", help=identity)
    parser.add_argument(
        "--status", type=int, default=200, help="The status of the view's response. Default: %(default)s."
    )
    parser.add_argument("--curl", default="", metavar="COMMAND", help="A curl command, instead of METHOD and PATH.")
    reference = (
        "The reference of a rejection, such as export#eJL8d1F2, or a response or line of the log: marks its counter."
    )
    parser.add_argument("--reference", default="", metavar="TEXT", help=reference)
    parser.add_argument("--json", action="store_true", help="Write JSON.")


def question_from(options: dict[str, Any]) -> Question:
    """Return the question in these arguments. Raises QuestionError."""
    question = Question(
        method=options["method"],
        path=options["path"],
        headers=tuple(_pair(text, ":") for text in options["header"]),
        identities=dict(_pair(text, "=") for text in options["identity"]),
        **{
            name: options[name]
            for name in ("view", "user", "api_key", "ip", "session", "scope", "body", "status", "gateway")
        },
    )
    return with_curl(options["curl"], question)


def lines_of(explanation: Explanation, logged: LoggedRefusal | None = None) -> Iterator[str]:
    """Yield the lines to print. logged: the rejection in question."""
    facts, response = explanation.facts, explanation.response
    named = _(", view %(view)s, route %(route)s") % {"view": facts.view_name, "route": facts.route}
    yield f"{facts.method} {facts.path}{named if facts.route or facts.view_name else ''}"
    yield headline_of(explanation)
    yield from (f"  {name}: {value}" for name, value in response.fields.items())
    if response.body:
        yield from ("", *(f"  {line}" for line in response.body.splitlines()))
    found = logged_in_words(explanation, logged)
    for text in (bypass_in_words(explanation), *doubts_of(explanation), found):
        if text:
            yield f"! {text}"
    tier = tier_in_words(explanation.tier)
    if tier:
        yield _("Tier: %s") % tier
    applying = explanation.applying
    if applying:
        yield ""
        yield _("These rules apply:")
        for each in applying:
            yield from _lines_of_rule(each, explanation, logged)
    others = [each for each in explanation.rules if not each.applies]
    if others and not explanation.bypass:
        yield ""
        yield _("These do not, and why:")
        yield from (f"  {each.rule.slug}: {reason_in_words(each, explanation)}" for each in others)
    yield from (f"  {rule}: {_('Not in force. %s') % reason}" for rule, reason in explanation.left_out)


def _lines_of_rule(each: RuleExplanation, explanation: Explanation, logged: LoggedRefusal | None) -> Iterator[str]:
    yield f"  {each.rule.slug} ({each.rule.mode}): {rows_in_words(each, explanation.tier)}"
    for counter in each.counters:
        mark = f" ({_('in the log')})" if logged and logged.is_of(each.rule.slug, counter.digest) else ""
        yield f"    {counter.words}{mark}: {counter_in_words(counter, each.rule.mode)}"
        yield f"      {counter.key}"
    if shadow := shadow_in_words(each):
        yield f"    {shadow}"


def json_of(explanation: Explanation, logged: LoggedRefusal | None = None) -> dict[str, Any]:
    """Return the explanation as JSON: each rule by its slug, with its reason as a code and as text.

    logged: the rejection in question.
    """
    return {
        "request": explanation.facts._asdict(),
        "version": explanation.version,
        "bypass": explanation.bypass,
        "access": explanation.access and explanation.access._asdict(),
        "doors": list(explanation.doors),
        "tier": _plain(asdict(explanation.tier)),
        "identities": dict(explanation.identities),
        "unknown": list(explanation.unknown),
        "doubts": doubts_of(explanation),
        "hidden": list(explanation.hidden),
        "rules": [_json_of_rule(each, explanation) for each in explanation.rules],
        "left_out": [rejected._asdict() for rejected in explanation.left_out],
        "response": None if "counters" in explanation.hidden else _plain(asdict(explanation.response)),
        "logged": None if logged is None else _json_of_logged(logged, explanation),
    }


def _json_of_logged(logged: LoggedRefusal, explanation: Explanation) -> dict[str, Any]:
    return {
        "rules": list(logged.rules),
        "rule": logged.rule,
        "digest": logged.digest,
        "found": None if "counters" in explanation.hidden else is_among(explanation, logged),
    }


def _json_of_rule(each: RuleExplanation, explanation: Explanation) -> dict[str, Any]:
    return {
        "rule": each.rule.slug,
        "mode": each.rule.mode,
        "applies": each.applies,
        "reason": each.reason,
        "why": "" if each.applies else reason_in_words(each, explanation),
        "missing": list(each.missing),
        "door": each.door,
        "rows": each.rows,
        "value": each.value,
        "rejects": None if "counters" in explanation.hidden else each.rejects,
        "counters": [_plain(asdict(counter)) for counter in each.counters],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, int | float | str | None) else str(value)


def _pair(text: str, sign: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found:
        raise QuestionError(
            "headers" if sign == ":" else "identities",
            _("%(text)r has no “%(sign)s”.")
            % {
                "text": text,
                "sign": sign,
            },
        )
    return name.strip(), value.strip()
