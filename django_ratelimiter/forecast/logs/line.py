"""One request of an access log."""

from __future__ import annotations

from typing import NamedTuple


class AccessLogLine(NamedTuple):
    """A request in a log.

    time_us: microseconds since the Unix epoch, of the start of the request if it is known. method: empty = no request,
    as the server has answered. path: as it was sent, without the query. address, user: empty = not in the log. An
    address can be a list of X-Forwarded-For; then "|" and the peer, if it is known. status: 0 = unknown. duration_us:
    microseconds until the end of the response; -1 = unknown. more: values of the requested additional fields, in their
    order; empty = not in the line. number: of the line in its file, from 1. file: number of the file, from 0.
    """

    time_us: int
    method: str
    path: str
    address: str = ""
    user: str = ""
    status: int = 0
    duration_us: int = -1
    more: tuple[str, ...] = ()
    number: int = 0
    file: int = 0


class WrongFormat(ValueError):
    """A log, or the description of its format, is invalid; the message says what would be right."""
