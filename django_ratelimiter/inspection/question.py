"""The question: a request that is not sent, and its caller; also by a `curl` command or a reference."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from django.utils.translation import gettext as _

from ..conf import settings
from ..exceptions import EngineUnavailable
from ..rules.tiers import is_known_api_key
from ..values.bounds import MAX_TEXT
from ..values.partitions import encode_partition
from ..values.references import Reference, parse_reference
from .caller import UnknownCaller, by_key, caller_of
from .references import Name, Rejected, digests_of, is_hash, known_rules, revealed_to, rule_of, rules_of

#: Maximum characters of the short texts of a question, by name.
MAX_LENGTHS: Final = {"method": 20, "path": 4_000, "view": 200, "scope": 100, "user": 200, "api_key": 300}


class QuestionError(ValueError):
    """The question cannot be answered; the text says what would be right. field: of `Question`."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and its caller."""

    method: str = "GET"
    path: str = ""  # of this site, with or without a query, or a URL
    view: str = ""  # the name of a view, instead of a path
    scope: str = ""  # that your code asks for, besides those that the view is known to name
    user: str = ""  # a login name or a primary key
    api_key: str = ""  # as callers send it, the hash of a known key, or "value:" and what API_KEY_RESOLVER returns
    ip: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    identities: Mapping[str, str] = field(default_factory=dict)  # values to count by, whatever the request contains

    @property
    def names_host(self) -> bool:
        """True if it contains the host: in a header, or in a URL of this site."""
        return bool(self.address.netloc) or any(
            name.lower() in ("host", "x-forwarded-host") for name, _value in self.headers
        )

    @property
    def address(self) -> SplitResult:
        """Return the parts of its path or URL. Raises QuestionError."""
        try:
            return urlsplit(self.path.strip())
        except ValueError:
            raise QuestionError("path", _("This is neither a path nor a URL.")) from None


def as_counted(question: Question) -> Question:
    """Return the question with the values of its caller as rules count by them. Raises QuestionError."""
    given = {name: each for name, each in {"api_key": question.api_key, **question.identities}.items() if each.strip()}
    try:
        known = dict(caller_of("partition", encode_partition(given.items())).known) if given else {}
    except UnknownCaller as error:
        raise QuestionError("api_key" if question.api_key else "identities", str(error)) from error
    if "api_key" in known and settings.API_KEY_RESOLVER is None and not is_known_api_key(known["api_key"]):
        del known["api_key"]
    return replace(question, identities={**dict.fromkeys(question.identities, ""), **known})


def pairs(texts: Iterable[str], sign: str, field: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values in texts such as "Name: value". Raises QuestionError for this field of a question."""
    found = []
    for text in filter(str.strip, texts):
        if sign == ":" and text.strip().startswith(":"):  # HTTP/2 pseudo-header fields, as browsers show them
            continue
        name, separator, value = text.partition(sign)
        if not separator:
            raise QuestionError(field, _("%(text)r has no “%(sign)s”.") % {"text": text, "sign": sign})
        found.append((name.strip(), value.strip()))
    return tuple(found)


#: What `shlex` does not read as a shell does: `$'…'`, as browsers write texts with quotes, and line ends.
_QUOTED: Final = re.compile(r"""\$'((?:[^'\\]|\\.)*)'|'[^']*'|"(?:[^"\\]|\\.)*"|\\(\r?\n)|\\.""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)

#: Options with a value, by what it is; "" = it does not matter here. With a colon: the start of a header field.
_OPTIONS: Final = {
    "method": "-X --request",
    "data": "-d --data --data-raw --data-binary --data-ascii --data-urlencode --json -F --form",
    "url": "--url",
    ":": "-H --header",
    "Cookie:": "-b --cookie",
    "Authorization: Basic ": "-u --user",
    "": "-A --user-agent -e --referer -o --output -m --max-time -x --proxy -c --cookie-jar -w --write-out",
}
_KINDS: Final = {option: kind for kind, options in _OPTIONS.items() for option in options.split()}


def is_curl(text: str) -> bool:
    """Return whether a text begins as such a command."""
    return "".join(text.split(None, 1)[:1]).rpartition("/")[2] == "curl"


def parse_curl(text: str, question: Question) -> Question:
    """Return the question in a command, about the caller of `question`. Raises QuestionError."""
    if len(text) > MAX_TEXT:
        raise QuestionError("curl", _("A text has at most %(count)d characters.") % {"count": MAX_TEXT})
    whole = _QUOTED.sub(_as_single, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    try:
        words = iter(shlex.split(whole))
    except ValueError:
        raise QuestionError("curl", _("This command cannot be read: a quotation mark has no end.")) from None
    if next(words, "").rpartition("/")[2] != "curl":
        raise QuestionError("curl", _("This is not a curl command."))
    found: dict[str, list[str]] = {}
    for word in words:
        name = word if word.startswith("--") else word[:2]
        kind = _KINDS.get(name, "flag" if word.startswith("-") else "url")
        found.setdefault(kind, []).append(word[len(name) :] or next(words, "") if name in _KINDS else word)
    urls, flags, data = found.get("url", []), found.get("flag", []), found.get("data", [])
    try:
        parts = urlsplit(next((url for url in urls if "://" in url), f"http://{urls[0]}" if urls else ""))
    except ValueError:
        parts = urlsplit("")
    if not parts.netloc:
        raise QuestionError("curl", _("This command contains no URL."))
    sent = [] if "-G" in flags or "--get" in flags else data
    method = "HEAD" if "-I" in flags or "--head" in flags else "POST" if sent else "GET"
    query = "&".join(filter(None, [parts.query, *([] if sent else data)]))
    fields = [kind.removeprefix(":") + value for kind in found if ":" in kind for value in found[kind]]
    headers = (("Host", parts.netloc.rpartition("@")[2]), *question.headers, *pairs(fields, ":", "curl"))
    path = f"{parts.path or '/'}?{query}".removesuffix("?")
    return replace(question, method=found.get("method", [method])[-1].upper(), path=path, view="", headers=headers)


def _as_single(found: re.Match[str]) -> str:
    """Return a part of a command as `shlex` reads it."""
    if found[1] is not None:
        return shlex.quote(_ESCAPE.sub(lambda each: each[3] or chr(int(each[1] or each[2], 16)), found[1]))
    return " " if found[2] else found[0]


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
        rejected = replace(rejected, callers=tuple(digests_of(rejected.reference)))
    except EngineUnavailable as error:
        return question, replace(rejected, problem=str(error))
    names = [*revealed_to(reader, rejected.callers).values()]
    if len(rejected.callers) == len(names) == 1 and not names_caller(question):
        question = replace(question, **_asked_of_caller(names[0]))
    return question, rejected


def names_caller(question: Question) -> bool:
    """Return whether the question says who the caller is."""
    known = question.user, question.api_key, question.ip, question.identities
    return any(known) or any(
        name.lower() in ("authorization", "cookie", settings.API_KEY_HEADER.lower())
        for name, _value in question.headers
    )


def _asked_of_caller(name: Name) -> dict[str, Any]:
    """Return the data for a question about this caller."""
    if name.kind == "customer":
        return {"identities": {name.kind: name.value}}
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
