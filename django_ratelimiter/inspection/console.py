"""The arguments of `manage.py ratelimit explain`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from .asking import asked
from .question import Question, pairs
from .references import ParsedRejection
from .report import texts_of

#: Options with one text.
_TEXTS: Final = ("view", "user", "api_key", "ip", "session", "scope", "body", "gateway")


def add_question(parser: ArgumentParser) -> None:
    """Add the arguments of a question."""
    for name, default in (("method", "GET"), ("path", "")):
        parser.add_argument(name, nargs="?", default=default, metavar=name.upper(), help=texts_of(Question)[name])
    for name in _TEXTS:
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help=texts_of(Question)[name])
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


def question_from(options: dict[str, Any]) -> tuple[Question, ParsedRejection | None]:
    """Return the question in these arguments, and the content of the reference. Raises QuestionError."""
    question = Question(
        method=options["method"],
        path=options["path"],
        headers=pairs(options["header"], ":", "headers"),
        identities=dict(pairs(options["identity"], "=", "identities")),
        status=options["status"],
        **{name: options[name] for name in _TEXTS},
    )
    return asked(question, options["curl"], options["reference"])
