"""The fields of a small request body: of a form, a multipart form or a JSON object.

The view can still read the body. A body that does not match its content type has no fields; the view reports errors.
Only UTF-8 is supported: with another `charset`, this module and the view might read two different values.
"""

from __future__ import annotations

import json
from codecs import lookup
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, NoReturn

from django.http import HttpRequest, QueryDict, UnreadablePostError
from django.http.multipartparser import MultiPartParser

from ..conf import django_setting

#: Bytes. A longer body is not read, and has no fields.
MAX_BODY: Final = 64 * 1024

#: A form with more fields has none, and a multipart form with more parts: Django takes 25 µs for a part, and more for
#: each if there are many.
MAX_FIELDS: Final = 1_000
MAX_PARTS: Final = 100

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"


class BodyNotRead(Exception):
    """Some rules need the body of the request, and others must be decided first: they may reject it unread."""


def fields_of(request: HttpRequest) -> Mapping[str, object]:
    """Return the fields by name: of a form the last value of each, of JSON those of the object. Raises nothing."""
    try:
        return _read(request)
    except Exception:  # a body can be broken in many ways; the view reports that
        return {}


def is_unread(request: Any) -> bool:
    """Return whether `fields_of` would read a body, or parse one."""
    if not _may_have_fields(request.content_type or "") or _is_parsed(request):
        return False
    return hasattr(request, "_body") or not request._read_started


def _is_parsed(request: Any) -> bool:
    """Return whether a form was parsed already, as by CsrfViewMiddleware. Of other methods, Django reads no form."""
    return hasattr(request, "_post") and (request.method == "POST" or bool(request._post))


def _may_have_fields(kind: str) -> bool:
    return kind in (_FORM, _MULTIPART, "application/json") or kind.endswith("+json")


def _read(request: HttpRequest) -> Mapping[str, object]:
    kind = request.content_type or ""
    if not _may_have_fields(kind):
        return {}
    if request.encoding and lookup(request.encoding).name != "utf-8":
        return {}
    if kind in (_FORM, _MULTIPART) and _is_parsed(request):
        length = len(request._body) if hasattr(request, "_body") else _said_length(request)
        return request._post if length <= MAX_BODY else {}  # type: ignore[attr-defined]
    body = _small_body(request)
    if body is None:
        return {}
    if kind == _FORM:
        return QueryDict(body, encoding="utf-8") if body.count(b"&") < MAX_FIELDS else {}
    if kind == _MULTIPART:
        boundary = (request.content_params or {}).get("boundary", "")
        if body.count(b"--" + boundary.encode()) > MAX_PARTS + 1:
            return {}
        # Without handlers: files are dropped, and the view can still set its own handlers
        return MultiPartParser(request.META, BytesIO(body), [], "utf-8").parse()[0]
    found = json.loads(body.decode("utf-8"))
    return found if isinstance(found, dict) else {}


def _small_body(request: Any) -> bytes | None:
    """Return the body; `None` if it is too long, or was read before and not stored."""
    if hasattr(request, "_body"):
        return request._body if len(request._body) <= MAX_BODY else None
    if request._read_started or not 0 < _length(request) <= _max_body():
        return None
    try:
        return request.body  # type: ignore[no-any-return]  # cached, so the view can read it, too
    except UnreadablePostError as error:
        request._stream, request._read_started = _BrokenStream(error), False
        return None


def _length(request: Any) -> int:
    """Return the length of the body in bytes: the received bytes or Content-Length, whichever is more."""
    stream = request._stream
    if not stream.seekable():
        return _said_length(request)
    position = stream.tell()
    end: int = stream.seek(0, 2)
    stream.seek(position)
    return max(end, _said_length(request))


def _said_length(request: HttpRequest) -> int:
    return int(request.META.get("CONTENT_LENGTH") or 0)


def _max_body() -> int:
    """Return the maximum bytes to read: `request.body` raises an error above the project's own maximum."""
    bound: int | None = django_setting("DATA_UPLOAD_MAX_MEMORY_SIZE", MAX_BODY)
    return MAX_BODY if bound is None else min(MAX_BODY, bound)


class _BrokenStream:
    """Raises the error of the connection again, so that the view gets the same one."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def read(self, *_size: int) -> NoReturn:
        raise self._error

    readline = read

    def seekable(self) -> bool:
        """Django 6 calls this before it reads."""
        return False

    def close(self) -> None:
        """Do nothing: it is closed already."""
