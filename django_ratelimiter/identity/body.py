"""The fields of a small request body: of a form, a multipart form or a JSON object.

The view can still read the body. A body that is not read here, although a view may read it, is not one without fields:
it is UNREADABLE. The caller chooses its length, its type, its encoding and its errors, which parsers judge differently.
Only UTF-8 is supported: with another `charset`, this module and the view might read two different values.
"""

from __future__ import annotations

import json
from codecs import lookup
from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final, NoReturn

from django.http import HttpRequest, QueryDict, UnreadablePostError
from django.http.multipartparser import MultiPartParser

from ..conf import django_setting

#: Bytes. A longer body is not read.
MAX_BODY: Final = 64 * 1024

#: A form with more fields is not parsed, nor a multipart form with more parts: Django takes 25 µs for a part, and more
#: for each if there are many.
MAX_FIELDS: Final = 1_000
MAX_PARTS: Final = 100

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"

#: What may precede the object in a JSON text, in UTF-8, UTF-16 or UTF-32.
_BEFORE_JSON: Final = b"\xef\xbb\xbf\xff\xfe\0 \t\r\n"

#: The fields of a body that is not read here, although a view may read it.
UNREADABLE: Final[Mapping[str, object]] = MappingProxyType({})


class BodyNotRead(Exception):
    """Some rules need the body of the request, and others must be decided first: they may reject it unread."""


def fields_of(request: HttpRequest) -> Mapping[str, object]:
    """Return the fields by name: of a form the last value of each, of JSON those of the object. Raises nothing."""
    try:
        return _read(request)
    except Exception:  # a body can be broken in many ways, and the view's parser may accept it
        return UNREADABLE


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


def _read(request: Any) -> Mapping[str, object]:
    kind, body = request.content_type or "", getattr(request, "_body", None)
    is_form = kind in (_FORM, _MULTIPART)
    if is_form and _is_parsed(request):
        is_long = (_said_length(request) if body is None else len(body)) > MAX_BODY
        fields: Mapping[str, object] = request._post
        return UNREADABLE if is_long or _is_mislabelled(request, body or b"") else fields
    if body is None and request._read_started:  # the project's own code has read it, and a view cannot do it again
        return {}
    length, longest = (_length(request), _max_body()) if body is None else (len(body), MAX_BODY)
    if length <= 0:
        return {}
    if (
        length > longest
        or not _may_have_fields(kind)
        or (request.encoding and lookup(request.encoding).name != "utf-8")
    ):
        return UNREADABLE
    try:
        body = request.body  # cached, so the view can read it, too
    except UnreadablePostError as error:  # nor can a view read it
        request._stream, request._read_started = _BrokenStream(error), False
        return {}
    if not is_form:
        found = json.loads(body.decode("utf-8"))
        return found if isinstance(found, dict) else UNREADABLE
    if _is_mislabelled(request, body):
        return UNREADABLE
    if kind == _FORM:
        return QueryDict(body, encoding="utf-8") if body.count(b"&") < MAX_FIELDS else UNREADABLE
    boundary = (request.content_params or {}).get("boundary", "")
    if body.count(b"--" + boundary.encode()) > MAX_PARTS + 1:
        return UNREADABLE
    # Without handlers: files are dropped, and the view can still set its own handlers
    return MultiPartParser(request.META, BytesIO(body), [], "utf-8").parse()[0]


def _is_mislabelled(request: HttpRequest, body: bytes) -> bool:
    """Return whether a form may be something else to a view: compressed, or JSON, which many read whatever its type."""
    is_packed = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower() not in ("", "identity")
    return is_packed or body.lstrip(_BEFORE_JSON).startswith((b"{", b"["))


def _length(request: Any) -> int:
    """Return the length of the body in bytes: the received bytes or Content-Length, whichever is more."""
    stream = getattr(request, "_stream", None)  # a request that no server has made has none
    if stream is None or not stream.seekable():
        return _said_length(request)
    position = stream.tell()
    end: int = stream.seek(0, 2)
    stream.seek(position)
    return max(end, _said_length(request))


def _said_length(request: HttpRequest) -> int:
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:  # none, as for Django
        return 0


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
