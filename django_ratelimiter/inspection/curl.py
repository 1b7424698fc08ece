"""A `curl` command, as browsers copy it, converted to a question. No file is read, and nothing is sent."""

from __future__ import annotations

import re
import shlex
from argparse import Action, ArgumentParser, Namespace
from base64 import b64encode
from dataclasses import replace
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlsplit

from django.utils.translation import gettext as _

from ..values.bounds import MAX_TEXT
from .question import Question, QuestionError

_FORM: Final = "application/x-www-form-urlencoded"
#: What a shell unquotes. Browsers write `$'…'` for texts with quotes or line breaks.
_QUOTED: Final = re.compile(
    r"""\$'(?P<ansi>(?:[^'\\]|\\.)*)'|'[^']*'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<gap>\\\r?\n)|\\.""", re.DOTALL
)
_ESCAPED_IN_DOUBLE: Final = re.compile(r'\\(["\\$`])')
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}

_DATA: Final = ("--data", "--data-raw", "--data-binary", "--data-ascii", "--data-urlencode", "--json")
#: Options with a value that do not matter for the request to the site.
_IGNORED: Final = (
    *("-o", "--output", "-m", "--max-time", "--connect-timeout", "-x", "--proxy", "-c", "--cookie-jar", "-w"),
    *("--write-out", "--retry", "-E", "--cert", "--key", "--cacert", "--resolve", "--limit-rate", "--ciphers"),
)
#: Options without a value that are ignored.
_FLAGS: Final = "fgikLnNOqRsSvZ0123456#"

#: Words of a command: argparse compares each option with all others.
MAX_WORDS: Final = 2_000


class _Append(Action):
    """As "append", which copies the list for each option."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        getattr(namespace, self.dest).append(values)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise QuestionError("curl", _("This command cannot be read: %s") % message)


def parse_curl(text: str, question: Question | None = None) -> Question:
    """Return the question in a command, about the caller of `question`. Raises QuestionError."""
    if len(text) > MAX_TEXT:
        raise QuestionError("curl", _("A text has at most %(count)d characters.") % {"count": MAX_TEXT})
    words = [_characters(word) for word in _words(text.strip())]
    if not words or words[0].rpartition("/")[2] != "curl":
        raise QuestionError("curl", _("This is neither a curl command nor a line of the log nor a reference."))
    if len(words) > MAX_WORDS:
        raise QuestionError("curl", _("This command cannot be read: %s") % f"it has more than {MAX_WORDS} words")
    found, ignored = _parser().parse_known_args([word for word in words[1:] if not _is_flag(word)])
    urls = [*found.url, *found.urls, *[word for word in ignored if not word.startswith("-")]]
    if not urls:
        raise QuestionError("curl", _("This command contains no URL."))
    return _question(found, next((url for url in urls if "://" in url), urls[0]), question or Question())


def with_curl(text: str, question: Question) -> Question:
    """Return the question in a command, with the header fields of `question` added; `question` itself if text is empty.

    Raises QuestionError.
    """
    if not text:
        return question
    asked = parse_curl(text, question)
    return replace(asked, headers=(*asked.headers, *question.headers))


def _parser() -> ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-X", "--request", default="")
    parser.add_argument("-H", "--header", action=_Append, default=[])
    for name in _DATA:
        short = ("-d",) if name == "--data" else ()
        parser.add_argument(*short, name, dest="data", action=_Append, type=_tagged(name), default=[])
    parser.add_argument("-F", "--form", action=_Append, default=[])
    parser.add_argument("-u", "--user", default="")
    parser.add_argument("-b", "--cookie", action=_Append, default=[])
    parser.add_argument("-A", "--user-agent", default="")
    parser.add_argument("-e", "--referer", default="")
    parser.add_argument("-I", "--head", action="store_true")
    parser.add_argument("-G", "--get", action="store_true")
    parser.add_argument("--url", action=_Append, default=[])
    for name in _IGNORED:
        parser.add_argument(name, dest="nothing")
    parser.add_argument("urls", nargs="*")
    return parser


def _tagged(name: str) -> Any:
    return lambda value: (name, value)


def _question(found: Namespace, url: str, question: Question) -> Question:
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise QuestionError("curl", _("This command cannot be read: %s") % error) from error
    body = "&".join(map(_datum, found.data))
    headers = [_header(each) for each in found.header]
    headers = [(name, value) for name, value in headers if value]
    names = {name.lower() for name, _value in headers}
    json = "application/json" if any(name == "--json" for name, _value in found.data) else ""
    more = [
        ("Cookie", "; ".join(each for each in found.cookie if "=" in each)),
        ("User-Agent", found.user_agent),
        ("Referer", found.referer),
        ("Authorization", f"Basic {b64encode(found.user.encode()).decode()}" if found.user else ""),
        ("Content-Type", json or _FORM if body and not found.get else ""),
        ("Accept", json),
        ("Host", parts.netloc.rpartition("@")[2]),
    ]
    headers += [(name, value) for name, value in more if value and name.lower() not in names]
    method = found.request or ("HEAD" if found.head else "POST" if (body or found.form) and not found.get else "GET")
    path = parts.path or "/"
    query = "&".join(filter(None, [parts.query, body if found.get else ""]))
    return replace(
        question,
        method=method.upper(),
        path=f"{path}?{query}" if query else path,
        view="",
        headers=tuple(headers),
        body="" if found.get else body,
    )


def _datum(given: tuple[str, str]) -> str:
    """Return the body for one data option. Files cannot be read, because they are on the user's machine."""
    name, value = given
    if value.startswith("@") and name != "--data-raw":
        raise QuestionError("curl", _("This command sends a file. Replace the name of the file by its content."))
    if name == "--data-urlencode":
        key, sign, rest = value.partition("=")
        return f"{key}{sign if key else ''}{quote(rest, safe='')}" if sign else quote(value, safe="")
    return value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise QuestionError("curl", _("%(name)r is not a header field.") % {"name": text})
    return name.strip(), value.strip()


def _is_flag(word: str) -> bool:
    """Return whether this is an option without a value, such as `-sS` or `--compressed`, that changes nothing."""
    if word.startswith("--"):
        return word in ("--compressed", "--location", "--insecure", "--silent", "--show-error", "--include", "--fail")
    return len(word) > 1 and word[0] == "-" and all(letter in _FLAGS for letter in word[1:])


def _words(text: str) -> list[str]:
    """Return the words of a command as a shell takes them apart. Raises QuestionError."""
    try:
        return shlex.split(_QUOTED.sub(_as_single, text))
    except ValueError:
        raise QuestionError("curl", _("This command cannot be read: a quotation mark has no end.")) from None


def _as_single(found: re.Match[str]) -> str:
    """Return a quoted text in single quotes, which `shlex` reads as a shell does."""
    if found["ansi"] is not None:
        return shlex.quote(_ESCAPE.sub(_unescaped, found["ansi"]))
    if found["double"] is not None:
        return shlex.quote(_ESCAPED_IN_DOUBLE.sub(r"\1", found["double"]))
    return " " if found["gap"] else found[0]


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    if escape[0] in "ux" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _ESCAPES.get(escape, escape)


def _characters(text: str) -> str:
    """Return the text with surrogate pairs, in which browsers escape emoji, as single characters."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
