"""The fields of a small request body: of a form, a multipart form or a JSON object.

The view finds the body as if nobody had read it. What cannot be read as those that claim to send it should have
written it has no fields; whether that is an error, the view will tell. The text is UTF-8 and nothing else: under
another `charset` we and the view might read two different values.
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

#: Bytes. A longer body is left alone, and has no fields.
MAX_BODY: Final = 64 * 1024

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"


def fields_of(request: HttpRequest) -> Mapping[str, object]:
    """Return the fields by name: of a form the last value of each, of JSON what the object holds. Raises nothing."""
    try:
        return _read(request)
    except Exception:  # there are endless ways to break a body, and it is the view's to refuse it
        return {}


def _read(request: HttpRequest) -> Mapping[str, object]:
    kind = request.content_type or ""
    is_form = kind in (_FORM, _MULTIPART)
    if not is_form and kind != "application/json" and not kind.endswith("+json"):
        return {}
    if request.encoding and lookup(request.encoding).name != "utf-8":
        return {}
    body = _small_body(request)
    if body is None:
        parsed = is_form and hasattr(request, "_post") and _said_length(request) <= MAX_BODY
        return request._post if parsed else {}  # type: ignore[attr-defined]
    if kind == _FORM:
        return QueryDict(body, encoding="utf-8")
    if kind == _MULTIPART:  # without handlers, so that files go nowhere and the view may still choose its own
        return MultiPartParser(request.META, BytesIO(body), [], "utf-8").parse()[0]
    found = json.loads(body.decode("utf-8"))
    return found if isinstance(found, dict) else {}


def _small_body(request: Any) -> bytes | None:
    """Return the body; `None` if it is longer than we read, or has been read by somebody who did not keep it."""
    if hasattr(request, "_body"):
        return request._body if len(request._body) <= MAX_BODY else None
    if request._read_started or not 0 < _length(request) <= _max_body():
        return None
    try:
        return request.body  # type: ignore[no-any-return]  # from now on kept, for the view as well
    except UnreadablePostError as error:
        request._stream, request._read_started = _BrokenStream(error), False
        return None


def _length(request: Any) -> int:
    """Bytes of the body: those that came where all have come, which is so on ASGI, else those announced."""
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
    """Bytes to read at most: `request.body` refuses to hold more than the project's own bound."""
    bound: int | None = django_setting("DATA_UPLOAD_MAX_MEMORY_SIZE", MAX_BODY)
    return MAX_BODY if bound is None else min(MAX_BODY, bound)


class _BrokenStream:
    """Fails as the connection did, so that the view gets the same error."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def read(self, *_size: int) -> NoReturn:
        raise self._error

    readline = read

    def seekable(self) -> bool:
        """Django 6 asks before it reads."""
        return False

    def close(self) -> None:
        """There is nothing left to close."""
