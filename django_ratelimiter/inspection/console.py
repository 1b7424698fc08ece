"""The arguments of `manage.py ratelimit explain`."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from .curl import with_curl
from .question import Question, pairs


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
        headers=pairs(options["header"], ":", "headers"),
        identities=dict(pairs(options["identity"], "=", "identities")),
        **{
            name: options[name]
            for name in ("view", "user", "api_key", "ip", "session", "scope", "body", "status", "gateway")
        },
    )
    return with_curl(options["curl"], question)
