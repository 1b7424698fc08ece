"""Formats of access logs: from the text of a line to its request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Final

from ...identity.proxies import is_peer
from ...values.bounds import json_from
from .line import AccessLogLine, WrongFormat
from .times import time_reader

#: Reads a line: its text, its number and the number of its file. ValueError, KeyError: it is not a request.
Parse = Callable[[str, int, int], AccessLogLine]

#: Fields with several names in logs: nginx's variables, gunicorn's atoms, and other common names.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "time": ("time", "msec", "time_iso8601", "time_local", "timestamp", "@timestamp", "ts", "t", "date"),
    "request": ("request", "request_line", "r"),
    "method": ("method", "request_method", "m", "http_method"),
    "path": ("path", "request_uri", "uri", "request_path", "url", "U"),
    "address": ("address", "remote_addr", "remote_ip", "remote_address", "client_ip", "ip", "client", "h"),
    "user": ("user", "remote_user", "username", "u"),
    "status": ("status", "response_code", "status_code", "s"),
    "duration": ("duration", "request_time", "response_time", "L"),
    "duration_ms": ("duration_ms", "request_time_ms", "M"),
    "duration_us": ("duration_us", "request_time_us", "D"),
}

#: Units per second for each field with a duration.
_DURATIONS: Final = {"duration": 1, "duration_ms": 1_000, "duration_us": 1_000_000}

#: Common, and combined with more fields: only the beginning is read.
_COMMON: Final = re.compile(
    r'(\S+) \S+ (.+?) \[([^\]\[]{1,40})\] "([A-Za-z][A-Za-z_-]*) (\S+?)(?: [^"]*)?" ([0-9]{3})\b'
)

_REQUEST: Final = re.compile(r"([A-Za-z][A-Za-z_-]*) (\S+)(?: .*)?")

_new = tuple.__new__  # what a named tuple calls in the end


class LogFormat:
    """A format: a parser for lines, and what these contain besides time, method and path.

    name: for people. holds: which of address, user, status, duration are in lines. fields: all fields with their
    names in the log; `None` = the format is fixed.
    """

    def __init__(self, name: str, parse: Parse, holds: frozenset[str], fields: tuple[str, ...] | None = None) -> None:
        self.name, self.parse, self.holds, self.fields = name, parse, holds, fields


def find_format(name: str, first: str, more: Sequence[str], zone: tzinfo) -> LogFormat:
    """Return the format of a log. Raises WrongFormat.

    name: auto, common, combined, json, or a regular expression with named groups. first: the first non-empty
    line. more: names of additional fields to read. zone: of times without one.
    """
    if name == "json" or (name == "auto" and first.lstrip().startswith("{")):
        return _json_format(first, more, zone)
    if name in ("auto", "common", "combined"):
        if more:
            raise WrongFormat(
                f"The format {'combined' if name == 'auto' else name} has no field {more[0]!r}. "
                "Describe the log with --format, a regular expression with named groups, or write JSON lines."
            )
        return LogFormat("combined", _common_parser(zone), frozenset(("address", "user", "status")))
    return _pattern_format(name, more, zone)


def _common_parser(zone: tzinfo) -> Parse:
    match, time_of = _COMMON.match, time_reader(zone)

    def parse(text: str, number: int, file: int) -> AccessLogLine:
        found = match(text)
        if found is None:
            raise ValueError("is not in the format common or combined")
        address, user, time, method, path, status = found.groups()
        parts = time_of(time), method, path.partition("?")[0], _address(address), "" if user == "-" else user
        return _new(AccessLogLine, (*parts, int(status), -1, (), number, file))

    return parse


def _json_format(first: str, more: Sequence[str], zone: tzinfo) -> LogFormat:
    try:
        example = json_from(first)
    except ValueError:
        raise WrongFormat("The first line is not JSON. Choose the --format of the log.") from None
    if not isinstance(example, dict):
        raise WrongFormat("The first line is not a JSON object. Choose the --format of the log.")
    roles = _roles(tuple(example))
    build = _builder(roles, more, zone)

    def parse(text: str, number: int, file: int) -> AccessLogLine:
        try:
            data = json_from(text)
        except json.JSONDecodeError as error:  # its text would contain another line number
            raise ValueError(f"is not JSON at character {error.pos + 1}") from None
        if type(data) is not dict:
            raise ValueError("is not a JSON object")
        return build(data, number, file)

    return LogFormat("json", parse, _holds(roles), tuple(example))


def _pattern_format(text: str, more: Sequence[str], zone: tzinfo) -> LogFormat:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise WrongFormat(
            "--format is auto, common, combined, json, or a regular expression; this is not a valid expression: "
            f"{error}."
        ) from None
    names = tuple(pattern.groupindex)
    roles = _roles(names)
    if unknown := [name for name in more if name not in names]:
        raise WrongFormat(f"--format has no group {unknown[0]!r}; its groups are {', '.join(names) or 'none'}.")
    build, match = _builder(roles, more, zone), pattern.match

    def parse(line: str, number: int, file: int) -> AccessLogLine:
        found = match(line)
        if found is None:
            raise ValueError("does not match --format")
        return build(found.groupdict(""), number, file)

    return LogFormat("own", parse, _holds(roles), names)


def _roles(names: tuple[str, ...]) -> dict[str, str]:
    """Return the field for each role. Raises WrongFormat if a required one is missing."""
    roles = {role: found for role, known in ROLES.items() for found in [_first(known, names)] if found is not None}
    if "time" not in roles:
        raise WrongFormat(f"No field contains the time. Name the field one of {', '.join(ROLES['time'])}.")
    if "request" not in roles and not {"method", "path"} <= roles.keys():
        raise WrongFormat("No field contains the request. Name the field request, or log method and path.")
    return roles


def _first(known: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    return next((name for name in known if name in names), None)


def _holds(roles: Mapping[str, str]) -> frozenset[str]:
    found = {role for role in ("address", "user", "status") if role in roles}
    return frozenset(found | ({"duration"} if roles.keys() & _DURATIONS.keys() else set()))


def _builder(
    roles: Mapping[str, str], more: Sequence[str], zone: tzinfo
) -> Callable[[Mapping[str, Any], int, int], AccessLogLine]:
    """Return a function that makes a line from fields by name."""
    time_of, more = time_reader(zone), tuple(more)
    time_name, request_name = roles["time"], roles.get("request", "")
    method_name, path_name = roles.get("method"), roles.get("path")
    address_name, user_name, status_name = (roles.get(role, "") for role in ("address", "user", "status"))
    duration_name, units = next(((roles[role], units) for role, units in _DURATIONS.items() if role in roles), ("", 1))

    def build(data: Mapping[str, Any], number: int, file: int) -> AccessLogLine:
        if method_name is None or path_name is None:
            found = _REQUEST.fullmatch(data[request_name])
            if found is None:
                raise ValueError("has no request")
            method, target = found.groups()
        else:
            method, target = data[method_name], data[path_name]
            if not isinstance(method, str):
                raise ValueError("has no method")
        duration = _microseconds(data.get(duration_name), units) if duration_name else -1
        status = data.get(status_name)
        return AccessLogLine(
            time_of(str(data[time_name])),
            method,
            target.partition("?")[0],
            _address(_text(data.get(address_name))),
            _text(data.get(user_name)),
            int(status) if status else 0,
            duration,
            tuple([_text(data.get(name)) for name in more]) if more else (),
            number,
            file,
        )

    return build


def _text(value: Any) -> str:
    return "" if value is None or value == "-" else str(value)


def _address(text: str) -> str:
    """Return the address of a line; "" = there is none. Raises ValueError for anything else."""
    if text == "-":
        return ""
    if not is_peer(text):
        raise ValueError(f"has no address in {text!r:.60}")
    return text


def _microseconds(value: Any, units: int) -> int:
    """Return a duration; -1 if there is none, as for a request that reached no server."""
    try:
        return round(float(value) * 1_000_000 / units)
    except (TypeError, ValueError, OverflowError):
        return -1
