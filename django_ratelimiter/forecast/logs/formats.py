"""Formats of access logs: from the text of a line to its request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from ...identity.proxies import is_peer
from ...values.bounds import json_from
from .times import TimeReader


class AccessLogLine(NamedTuple):
    """A request in a log.

    time_us: microseconds since the Unix epoch, of the start of the request if it is known. method: empty = no request,
    as the server has answered. path: as it was sent, without the query. address, user: empty = not in the log. An
    address can be a list of X-Forwarded-For; then "|" and the peer, if it is known. status: 0 = unknown. duration_us:
    microseconds until the end of the response; -1 = unknown. more: values of the requested additional fields, in their
    order; empty = not in the line. file: its number, from 0.
    """

    time_us: int
    method: str
    path: str
    address: str = ""
    user: str = ""
    status: int = 0
    duration_us: int = -1
    more: tuple[str, ...] = ()
    file: int = 0


class WrongFormat(ValueError):
    """A log, or the description of its format, is invalid; the message says what would be right."""


#: Reads a line: its text, and the number of its file. ValueError, KeyError: it is not a request.
Parse = Callable[[str, int], AccessLogLine]

#: The names of fields in logs: nginx's variables, gunicorn's atoms, those of Caddy, Traefik, ECS, Google Cloud and
#: Cloudflare, and other common names. A dot leads into an object. Servers write a line when they know its status, so a
#: time is the end of the request, unless its name says otherwise.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    role: tuple(names.split())
    for role, names in {
        "start": "start start_time event.start StartUTC StartLocal EdgeStartTimestamp",
        "end": "time msec time_iso8601 time_local event.end timestamp @timestamp ts t date end_time EdgeEndTimestamp",
        "request": "request request_line r",
        "method": "method request_method m http_method request.method http.request.method httpRequest.requestMethod "
        "RequestMethod ClientRequestMethod",
        "path": "request_uri path uri request_path url U request.uri url.original url.path httpRequest.requestUrl "
        "RequestPath ClientRequestURI ClientRequestPath",
        "address": "address remote_addr remote_ip remote_address client_ip ip client h request.remote_ip source.ip "
        "client.ip source.address httpRequest.remoteIp ClientHost ClientIP",
        "user": "user remote_user username u user_id user.name ClientUsername",
        "status": "status response_code status_code s http.response.status_code httpRequest.status DownstreamStatus "
        "EdgeResponseStatus",
        "duration": "duration request_time response_time L httpRequest.latency",
        "duration_s": "duration_s",
        "duration_ms": "duration_ms request_time_ms M",
        "duration_us": "duration_us request_time_us D",
        "duration_ns": "duration_ns Duration event.duration",
    }.items()
}

#: What --format can name. For other logs, users write an expression.
FORMATS: Final = ("auto", "common", "combined", "json")

#: Roles that are not looked for if the user names the field of another one, which says the same.
_REPLACES: Final = {"request": ("method", "path"), "method": ("request",), "path": ("request",), "start": ("end",),
                    "end": ("start",)}  # fmt: skip

#: Fields that contain a line of a common log: those of Docker, Filebeat, Fluentd, journald and Google Cloud.
_WRAPPERS: Final = ("log", "message", "MESSAGE", "textPayload", "msg")

#: The units per second of each role with a duration; 0 = only the value can name its unit.
_DURATIONS: Final = {
    "duration": 0, "duration_s": 1, "duration_ms": 1_000, "duration_us": 1_000_000, "duration_ns": 1_000_000_000
}  # fmt: skip

#: Variables of nginx and gunicorn in seconds, which always have a fraction.
_SECONDS: Final = ("request_time", "L")
_UNITS: Final = {"": 0, "s": 1, "ms": 1_000, "us": 1_000_000, "µs": 1_000_000, "ns": 1_000_000_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?(?:e-?\d+)?)(s|ms|us|µs|ns|)", re.ASCII)

#: The usual line of common and combined logs: only its beginning is read.
_COMMON: Final = re.compile(r'(\S+) - (\S+) \[([^\]\[]{1,40})\] "([A-Za-z][A-Za-z_-]*) (\S+?)(?: [^"]*)?" ([0-9]{3})\b')

#: What begins and ends the request on any other such line. In a line that is quoted, quotation marks are \" or "".
_BEFORE: Final = re.compile(r'\[([^\]\[]{1,40})\] (?:""(?! )|\\?")')
_AFTER: Final = re.compile(r'(.*?)(?:""|\\?") ([0-9]{3}|-)(?=[\s"\\]|\Z)')

_REQUEST: Final = re.compile(r"([A-Za-z][A-Za-z_-]*) (\S+)(?: .*)?")
_METHOD: Final = re.compile(r"[A-Za-z][A-Za-z_-]*")

#: Maximum length of what stands before the time of a line.
_MAX_HEAD: Final = 2_000

_new = tuple.__new__  # what a named tuple calls in the end


class LogFormat(NamedTuple):
    """A format: its name for people, and a parser for lines."""

    name: str
    parse: Parse


class Wanted(NamedTuple):
    """How to read a log. name: one of FORMATS, or an expression with named groups.

    identities: the identity in an additional field, by the field: its values are `AccessLogLine.more`. fields: the
    fields of a JSON log by their roles.
    """

    name: str = "auto"
    identities: Mapping[str, str] = {}
    fields: Mapping[str, str] = {}


#: Exceptions for a line that is not a request.
UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def find_format(wanted: Wanted, first: Sequence[str], time_of: TimeReader) -> LogFormat:
    """Return the format of a log with these first lines. Raises WrongFormat."""
    if wanted.name not in FORMATS:
        if "(?P<" in wanted.name:
            return _pattern_format(wanted, time_of)
        raise WrongFormat(
            f"There is no format {wanted.name!r}. Formats are {', '.join(FORMATS)}. "
            "A regular expression needs named groups, such as (?P<time>…)."
        )
    objects = []
    for line in first:
        with suppress(*UNREADABLE):
            objects.append(_object(line))
    if wanted.name in ("common", "combined") or (wanted.name == "auto" and 2 * len(objects) <= len(first)):
        return _common_format(wanted, time_of)
    try:
        return _json_format(wanted, objects, time_of)
    except WrongFormat:
        for name in _WRAPPERS:
            if any(name in each for each in objects):
                return _wrapped_format(name, wanted, time_of)
        raise


def _object(text: str) -> dict[str, Any]:
    try:
        data = json_from(text)
    except json.JSONDecodeError as error:  # its text would contain another line number
        raise ValueError(f"is not JSON at character {error.pos + 1}") from None
    if type(data) is not dict:
        raise ValueError("is not a JSON object")
    return data


def _common_format(wanted: Wanted, time_of: TimeReader) -> LogFormat:
    if wanted.identities or wanted.fields:
        name = [*wanted.identities, *wanted.fields.values()][0]
        raise WrongFormat(
            f"The format combined has no field {name!r}. "
            "Describe the log with --format, a regular expression with named groups, or write JSON lines."
        )
    match = _COMMON.match

    def parse(text: str, file: int) -> AccessLogLine:
        found = match(text)
        if found is None or not is_peer(found[1]):
            address, user, time, method, path, status = _unusual(text)
        else:
            address, user, time, method, path, status = found.groups()
        if ":" in address:
            address = _address(address)
        parts = time_of(time), method, path.partition("?")[0], address, "" if user == "-" else user
        return _new(AccessLogLine, (*parts, int(status), -1, (), file))

    return LogFormat("combined", parse)


def _unusual(text: str) -> tuple[str, ...]:
    """Return the parts of a common line with words before the address, in quotes, or without a request."""
    before = _BEFORE.search(text)
    after = _AFTER.match(text, before.end()) if before else None
    if before is None or after is None or before.start() > _MAX_HEAD:
        raise ValueError('is not in the format common or combined, ADDRESS - USER [TIME] "REQUEST" STATUS')
    request, status = after[1], str(_status(after[2]))
    return *_who(text[: before.start()]), before[1], *_target(*_split(request), int(status)), status


def _who(head: str) -> tuple[str, str]:
    """Return address and user from what stands before the time: WORDS ADDRESS - USER.

    Addresses at the end of WORDS are a list of X-Forwarded-For.
    """
    words = [word for each in head.replace(",", ", ").split() if (word := each.strip("\"'"))]
    for place, word in enumerate(words):
        if place and (word == "-" or place == len(words) - 2) and is_peer(words[place - 1]):
            return _listed(words[:place]), _after_dash(words[place + 1 :])
    for place, word in enumerate(words):  # a server on a Unix socket, maybe after a prefix
        if word == "-" and (not place or words[place - 1][-1:] in (":", "|")):
            return "", _after_dash(words[place + 1 :])
    if not words or is_peer(words[-1]):
        return _listed(words) if words else "", ""
    raise ValueError(f"has no address in {head.strip()!r:.60}")


def _listed(words: Sequence[str]) -> str:
    """Return the address that is the last of these words, with the list before it, see `AccessLogLine`."""
    *others, peer = words
    start = len(others)
    while start and (others[start - 1][-1:] == "," or _is_bare(others[start - 1])):
        start -= 1
    if start == len(others):
        return peer
    if others[-1][-1:] == ",":
        return " ".join([*others[start:], peer])
    return ", ".join(word.rstrip(",") for word in others[start:]) + f"|{peer}"


def _after_dash(words: Sequence[str]) -> str:
    """Return the user at the end of these words; some logs have another field before it, and a dash."""
    last = max((place for place, word in enumerate(words[:-1]) if word == "-"), default=-1)
    return " ".join(words[last + 1 :])


def _is_bare(text: str) -> bool:
    """Return whether this is an address without a port: with one it may name a virtual host."""
    return bool(text) and text[0].isalnum() and "." in text and ":" not in text and is_peer(text)


def _wrapped_format(field: str, wanted: Wanted, time_of: TimeReader) -> LogFormat:
    """Return the format of JSON objects, each with a line of a common log in a field."""
    name, parse = _common_format(wanted, time_of)
    return LogFormat(f"{name} in {field}", lambda text, file: parse(_object(text)[field], file))


def _json_format(wanted: Wanted, objects: Sequence[Mapping[str, Any]], time_of: TimeReader) -> LogFormat:
    """Return the format of a log with these objects. Raises WrongFormat if a field is missing."""
    if not objects:
        raise WrongFormat("The first lines are not JSON objects. Choose the --format of the log.")
    build = _builder(_roles(wanted, objects), wanted, time_of)
    return LogFormat("json", lambda text, file: build(_object(text), file))


def _pattern_format(wanted: Wanted, time_of: TimeReader) -> LogFormat:
    try:
        pattern = re.compile(wanted.name)
    except re.error as error:
        raise WrongFormat(f"--format is not a valid regular expression: {error}.") from None
    groups = tuple(pattern.groupindex)
    if unknown := [each for each in (*wanted.identities, *wanted.fields.values()) if each not in groups]:
        raise WrongFormat(f"--format has no group {unknown[0]!r}; its groups are {', '.join(groups) or 'none'}.")
    build = _builder(_roles(wanted, [dict.fromkeys(groups, "")]), wanted, time_of)

    def parse(line: str, file: int) -> AccessLogLine:
        found = pattern.match(line.rstrip("\r\n"))
        if found is None:
            raise ValueError("does not match --format")
        return build(found.groupdict(""), file)

    return LogFormat("own", parse)


def _roles(wanted: Wanted, objects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the field for each role: that which the user names, else the most frequent one of `ROLES`.

    Raises WrongFormat if a field that the user names, the time or the request is missing.
    """
    own = {role: (field,) for role, field in wanted.fields.items()}
    replaced = {other for role in own for other in _REPLACES.get(role, ())} | own.keys()
    several = [dict(_flat(each)) for each in objects]
    roles = {}
    for role, names in {**own, **{role: names for role, names in ROLES.items() if role not in replaced}}.items():
        counts = [sum(not isinstance(each.get(name), dict | list | None) for each in several) for name in names]
        if any(counts):
            roles[role] = names[counts.index(max(counts))]
    simple = dict.fromkeys(name for each in several for name, value in each.items() if not isinstance(value, dict))
    known = ", ".join([*simple][:20]) or "none"
    if misspelt := [field for field in wanted.fields.values() if not any(field in each for each in several)]:
        raise WrongFormat(f"None of the first lines has the field {misspelt[0]!r}. The fields are: {known}.")
    if not roles.keys() & {"start", "end"}:
        raise WrongFormat(f"No field contains the time. Name it: --field time=NAME. The fields are: {known}.")
    if "request" not in roles and not {"method", "path"} <= roles.keys():
        raise WrongFormat(f"No field contains the request. Name it: --field request=NAME. The fields are: {known}.")
    is_guessed = "method" in roles and not {"path", "request"} & own.keys()
    if is_guessed and roles.get("path", "request_uri") != "request_uri":
        _require_one_path([name for role in ("path", "request") for name in ROLES[role]], several)
    return roles


def _require_one_path(names: Sequence[str], objects: Sequence[Mapping[str, Any]]) -> None:
    """Raise WrongFormat if objects have several of these fields, with different paths: only one is of the request."""
    several = [{name: path for name in names if (path := _path_in(_text(each.get(name))))} for each in objects]
    different = [each for each in several if len(set(each.values())) > 1]
    if len(different) > len(objects) / 100:
        found = ", ".join(f"{name} ({path:.60})" for name, path in different[0].items())
        raise WrongFormat(f"Several fields may contain the path: {found}. Name the right one: --field path=NAME.")


def _path_in(text: str) -> str:
    """Return the path of a request or URL; "" = it is none."""
    path = _split(text)[1].partition("?")[0]
    path = "/" + path.partition("://")[2].partition("/")[2] if "://" in path else path
    return unquote(path) if path.startswith("/") else ""


def _flat(data: Any, inside: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields with their values, and those of an object or a list in a field: their names after a dot."""
    for name, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, dict | list):
            yield from _flat(value, f"{inside}{name}.")
        yield f"{inside}{name}", value


def _builder(
    roles: Mapping[str, str], wanted: Wanted, time_of: TimeReader
) -> Callable[[Mapping[str, Any], int], AccessLogLine]:
    """Return a function that makes a line from fields by name."""
    more = tuple(wanted.identities)
    is_dotted = any("." in name for name in (*roles.values(), *more))
    start_name, end_name, request_name = (roles.get(role, "") for role in ("start", "end", "request"))
    method_name, path_name = roles.get("method", ""), roles.get("path", "")
    by_parts = bool(method_name and path_name)
    address_name, user_name, status_name = (roles.get(role, "") for role in ("address", "user", "status"))
    duration_name, units = next(((roles[role], _DURATIONS[role]) for role in roles if role in _DURATIONS), ("", 0))
    has_fraction = duration_name in _SECONDS

    def build(data: Mapping[str, Any], file: int) -> AccessLogLine:
        if is_dotted:
            data = dict(_flat(data))
        status = _status(data.get(status_name))
        parts = (data[method_name], data[path_name]) if by_parts else _split(data[request_name])
        method, target = _target(parts[0], parts[1], status)
        duration_us = _microseconds(data.get(duration_name), units, has_fraction) if duration_name else -1
        if start := _text(data.get(start_name)):
            time_us = time_of(start)
            if duration_us < 0 and (end := _text(data.get(end_name))):
                duration_us = max(time_of(end) - time_us, 0)
        else:
            time_us = time_of(str(data[end_name or start_name])) - max(duration_us, 0)
        return AccessLogLine(
            time_us,
            method,
            target.partition("?")[0],
            _address(_text(data.get(address_name))),
            _text(data.get(user_name)),
            status,
            duration_us,
            tuple([_text(data.get(name)) for name in more]),
            file,
        )

    return build


def _text(value: Any) -> str:
    return "" if value is None or value == "-" else str(value)


def _status(value: Any) -> int:
    """Return a status; 0 if there is none. Raises ValueError for anything else."""
    return 0 if value in (None, "", "-") else int(value)


def _split(request: str) -> tuple[str, str]:
    found = _REQUEST.fullmatch(request)
    return (found[1], found[2]) if found else ("", request)


def _target(method: Any, target: Any, status: int) -> tuple[str, str]:
    """Return method and target; empty ones if the server has answered that this is no request."""
    if isinstance(method, str) and isinstance(target, str) and _METHOD.fullmatch(method) and target not in ("", "-"):
        return method, target
    if 400 <= status < 500:
        return "", ""
    raise ValueError(f"has no request in {target or method!r:.60}")


def _address(text: str) -> str:
    """Return the address of a line, see `AccessLogLine`; "" = there is none. Raises ValueError for anything else."""
    if text in ("", "-"):
        return ""
    last = re.split("[,|]", text)[-1].strip() if "," in text or "|" in text else text
    if not last or not is_peer(last):
        raise ValueError(f"has no address in {text!r:.60}")
    if text.count(":") == 1 and "." in text and last is text:
        return text.partition(":")[0]  # the port differs with each connection
    return text


def _microseconds(value: Any, units: int, has_fraction: bool) -> int:
    """Return a duration; -1 if there is none, or if nothing names its unit. Raises ValueError for anything else.

    units: per second; 0 = only the value can say it. has_fraction: a value with a fraction is in seconds.
    """
    text = _text(value)
    if not text:
        return -1
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"has no duration in {text!r:.60}")
    units = _UNITS[found[2]] or units or (has_fraction and "." in text)
    if not units and float(found[1]):
        return -1
    return round(float(found[1]) * 1_000_000 / (units or 1))
