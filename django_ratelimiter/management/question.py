"""The arguments of `manage.py ratelimit explain`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from ..inspection.question import Question, asked, pairs
from ..inspection.references import Rejected

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
