"""Fields of the body: which are found, and that views, forms and the REST framework read it as if nobody had."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, UnreadablePostError
from django.test import RequestFactory, override_settings
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request

from django_ratelimiter.identity import identify
from django_ratelimiter.identity.body import MAX_BODY, MAX_FIELDS, MAX_PARTS

FORM, JSON = "application/x-www-form-urlencoded", "application/json"


_received: list[Any] = []


@pytest.fixture(autouse=True)
def _end_of_requests() -> Iterator[None]:
    yield
    while _received:
        _received.pop().close()


class Stream(BytesIO):
    """A socket's side of a body: read forwards, once, and it counts the bytes."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.taken += len(found)
        return found


def wsgi(body: bytes, kind: str, method: str = "POST", **environ: Any) -> WSGIRequest:
    """A request as a WSGI server hands it on."""
    made: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": "/",
        "CONTENT_TYPE": kind,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": Stream(body),
    }
    return WSGIRequest(made | environ)


def asgi(body: bytes, kind: str, method: str = "POST", announced: bool = True) -> ASGIRequest:
    """A request as an ASGI server hands it on; without its length where it came in chunks."""
    kept = SpooledTemporaryFile(max_size=1_000)  # noqa: SIM115  closed by the fixture, as by the handler
    _received.append(kept)
    kept.write(body)
    kept.seek(0)
    headers = [(b"content-type", kind.encode("latin1"))] + [(b"content-length", b"%d" % len(body))] * announced
    return ASGIRequest({"type": "http", "method": method, "path": "/", "query_string": b"", "headers": headers}, kept)


def chunked(body: bytes, kind: str, method: str = "POST") -> ASGIRequest:
    return asgi(body, kind, method, announced=False)


KINDS: Any = pytest.mark.parametrize("make", [wsgi, asgi, chunked])


def is_unreadable(request: HttpRequest) -> bool:
    return identify(request).has_unreadable_body


def field(request: HttpRequest, name: str = "email") -> str | None:
    return identify(request).value(f"field:{name}")


MULTIPART = encode_multipart(BOUNDARY, {"email": " ann@example.com ", "photo": SimpleUploadedFile("p.png", b"\x89PNG")})


def test_exact_fields_are_compared_as_sent() -> None:
    with override_settings(RATELIMITER={"EXACT_FIELDS": ["field:code"]}):
        found = identify(RequestFactory().post("/", {"code": " aB", "email": "aB"}))
        assert (found.value("field:code"), found.value("field:email")) == ("aB", "ab")


def test_no_time_is_spent_on_what_is_no_name() -> None:
    accents = ("e" + "\u0301\u0323" * 15_000).encode()  # to put these in order takes CPython two seconds
    started = time.thread_time()
    assert field(wsgi(b'{"email": "' + accents + b'"}', JSON)) == accents.decode()
    assert time.thread_time() - started < 0.1


@KINDS
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"a=1&email=+ann%40example.com"),
        (f"{FORM}; charset=utf-8", b"email=bob&email=ann@example.com"),
        (MULTIPART_CONTENT, MULTIPART),
        (JSON, b'{"email": "ann@example.com"}'),
        (f"{JSON}; charset=UTF8", b'{"email": "bob", "email": "ann@example.com"}'),
        ("application/vnd.api+json", b' {"email": "ann@example.com"}\n'),
        ("APPLICATION/JSON", b'{"email": "ann@example.com"}'),
    ],
)
def test_the_field_that_the_view_would_read(make: Any, method: str, kind: str, body: bytes) -> None:
    found = None if make is chunked and kind == MULTIPART_CONTENT else "ann@example.com"  # as Django's own parser does
    assert field(make(body, kind, method)) == found


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ('"42"', "42"),
        ("42", "42"),
        ("42.0", "42"),
        ("true", "true"),
        ("1e999", "inf"),
        ("null", None),
        ('""', None),
        ("[42]", None),
        ('{"a": 1}', None),
        (r'"\ud800"', "\ud800"),
        ('"\uff21\U0001d427n"', "ann"),
        ('" ANN\u00c1 "', "ann\u00e1"),
        ('"STRASSE"', "strasse"),
        ('"stra\u00dfe"', "strasse"),
        ("1" * 300, "1" * 300),
        ("1" * 5_000, None),
    ],
)
def test_the_values_of_json(written: str, found: str | None) -> None:
    assert field(wsgi(b'{"email": %s}' % written.encode(), JSON)) == found


NO_SUCH_FIELD = [
    (JSON, b""),
    ("", b""),
    (JSON, b'{"name": "ann", "email": ["ann"]}'),
    (FORM, b"name=ann"),
    (FORM, b"email="),
    (FORM, b"\x00\xff"),
    (MULTIPART_CONTENT, MULTIPART[:40]),
    (MULTIPART_CONTENT, b"\x00" * 100),
]

#: What another parser may read, or the same one with more stack, or a view that does not look at the type.
UNREADABLE = [
    (JSON, b"{"),
    (JSON, b'["email"]'),
    (JSON, b"\xff\xfe"),
    (JSON, b'\xef\xbb\xbf{"email": "ann"}'),
    (JSON, '{"email": "ann"}'.encode("utf-16")),
    (JSON, b"[" * 60_000),
    (JSON, b'{"email": ' * 6_000),
    (f"{JSON}; charset=utf-7", b'{"email": "ann", "+AGUAbQBhAGkAbA-": "bob"}'),
    (f"{FORM}; charset=utf-7", b"email=ann"),
    (f"{MULTIPART_CONTENT}; charset=utf-16", MULTIPART),
    (FORM, b"&".join(b"%d=" % n for n in range(1_100)) + b"&email=ann"),
    (FORM, b'{"email": "ann", "x": "&email=bob&"}'),
    (FORM, b' [{"email": "ann"}]'),
    (FORM, '{"email": "ann"}'.encode("utf-16")),
    (MULTIPART_CONTENT, '{"email": "ann"}'.encode("utf-32-be")),
    ("multipart/form-data", MULTIPART),
    ("multipart/form-data; boundary=", MULTIPART),
    ("text/plain", b"email=ann"),
    ("", b"email=ann"),
    ("; ;=", b"email=ann"),
    (FORM, b"email=" + b"a" * MAX_BODY),
    (JSON, b'{"email": "ann", "more": "%s"}' % (b"a" * MAX_BODY)),
    (
        MULTIPART_CONTENT,
        encode_multipart(BOUNDARY, {"email": "ann", "photo": SimpleUploadedFile("p", b"p" * MAX_BODY)}),
    ),
    (FORM, b"email=ann" + b"&a" * MAX_FIELDS),
    (MULTIPART_CONTENT, encode_multipart(BOUNDARY, {"email": "ann", **dict.fromkeys(map(str, range(MAX_PARTS)), 1)})),
]


@KINDS
@pytest.mark.parametrize(
    ("kind", "body", "unreadable"),
    [*[(*each, False) for each in NO_SUCH_FIELD], *[(*each, True) for each in UNREADABLE]],
)
def test_a_body_that_is_not_read_is_told_from_one_without_the_field(
    make: Any, kind: str, body: bytes, unreadable: bool
) -> None:
    request = make(body, kind)
    assert (field(request), is_unreadable(request)) == (None, unreadable)
    assert request.body == body
    assert (field(request), is_unreadable(request)) == (None, unreadable)


def test_a_packed_form_is_unreadable_before_and_after_django_has_parsed_it() -> None:
    request = wsgi(b"email=ann", FORM, HTTP_CONTENT_ENCODING="gzip")
    assert (field(request), is_unreadable(request)) == (None, True)
    assert request.POST["email"] == "ann"
    assert (field(request), is_unreadable(request)) == (None, True)
    assert field(wsgi(b"email=ann", FORM, HTTP_CONTENT_ENCODING="identity")) == "ann"


@pytest.mark.parametrize("make", [wsgi, asgi])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_the_body_can_be_read_afterwards_in_any_way(make: Any, method: str) -> None:
    def request() -> Any:
        made = make(MULTIPART, MULTIPART_CONTENT, method)
        assert field(made) == "ann@example.com"
        return made

    assert request().body == MULTIPART
    assert request().read() == MULTIPART
    assert b"".join(request()) == MULTIPART
    assert request().readline() == MULTIPART.splitlines(keepends=True)[0]
    if method == "POST":
        once = request()
        once.upload_handlers = [MemoryFileUploadHandler(once)]  # which a form that was parsed forbids
        assert once.POST["email"] == " ann@example.com "
        assert once.FILES["photo"].read() == b"\x89PNG"
    framework = Request(request(), parsers=[JSONParser(), FormParser(), MultiPartParser()])
    assert framework.data["email"] == " ann@example.com "
    assert framework.FILES["photo"].read() == b"\x89PNG"


@pytest.mark.parametrize("make", [wsgi, asgi])  # it takes a body of no length for none
def test_the_framework_parses_json_afterwards(make: Any) -> None:
    body = json.dumps({"email": "ann", "more": [1]}).encode()
    request = make(body, JSON)
    assert field(request) == "ann"
    assert Request(request, parsers=[JSONParser()]).data == {"email": "ann", "more": [1]}


def test_as_many_fields_and_parts_as_are_allowed_are_read() -> None:
    parts = {**dict.fromkeys(map(str, range(MAX_PARTS - 1)), 1), "email": "ann"}
    assert field(wsgi(encode_multipart(BOUNDARY, parts), MULTIPART_CONTENT)) == "ann"
    assert field(wsgi(b"a&" * (MAX_FIELDS - 1) + b"email=ann", FORM)) == "ann"


def test_a_long_body_is_not_touched() -> None:
    body = b"email=" + b"a" * MAX_BODY
    request = wsgi(body, FORM)
    assert (field(request), is_unreadable(request)) == (None, True)
    assert request.environ["wsgi.input"].taken == 0
    assert not request._read_started
    assert request.read(6) == b"email="


def test_a_body_as_long_as_is_read() -> None:
    body = b"a=" + b"a" * (MAX_BODY - 12) + b"&email=ann"
    assert len(body) == MAX_BODY
    assert field(wsgi(body, FORM)) == "ann"


@KINDS
def test_a_project_that_holds_less_in_memory_is_obeyed(make: Any) -> None:
    body = b"email=ann"
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=5):
        request = make(body, FORM)
        assert (field(request), is_unreadable(request)) == (None, True)
        assert request.read() == body
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=None):
        assert field(make(body, FORM)) == "ann"


@KINDS
def test_a_body_that_was_read_already(make: Any) -> None:
    kept = make(b"email=ann", FORM)
    assert kept.body
    assert field(kept) == "ann"
    parsed = make(MULTIPART, MULTIPART_CONTENT)
    told = parsed.POST.get("email", "").strip() or None
    assert field(parsed) == told
    assert told is not None or make is chunked
    streamed = make(b"email=ann", FORM)
    assert streamed.read(3) == b"ema"
    assert (field(streamed), is_unreadable(streamed)) == (None, False)  # nor can the view read it
    assert streamed.read() == b"il=ann"


@pytest.mark.parametrize("length", ["x", "-1", "", "0", "1e3", "\xb2"])
def test_a_length_that_is_none(length: str) -> None:
    for kind in (FORM, "text/plain"):
        request = wsgi(b"email=ann", kind, CONTENT_LENGTH=length)
        assert (field(request), is_unreadable(request)) == (None, False)


def test_chunks_without_a_length_under_wsgi_are_empty_to_the_rule_and_to_the_view() -> None:
    request = wsgi(b"email=ann", FORM, CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked")
    assert (field(request), dict(request.POST)) == (None, {})
    assert field(chunked(b"email=ann", FORM)) == "ann"


def test_a_length_that_is_not_kept() -> None:
    assert field(wsgi(b"email=ann", FORM, CONTENT_LENGTH="5000")) == "ann"
    assert field(wsgi(b"email=ann", FORM, CONTENT_LENGTH="7")) == "a"


class Lost(BytesIO):
    def read(self, *_size: object) -> bytes:
        raise OSError("connection lost")


def test_a_lost_connection_is_the_views_to_meet() -> None:
    request = wsgi(b"email=ann", FORM, **{"wsgi.input": Lost()})
    assert (field(request), is_unreadable(request)) == (None, False)
    with pytest.raises(UnreadablePostError, match="connection lost"):
        _ = request.body
    again = wsgi(b"email=ann", FORM, **{"wsgi.input": Lost()})
    assert field(again) is None
    with pytest.raises(UnreadablePostError, match="connection lost"):
        again.readline()


def test_several_fields_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = identify(RequestFactory().post("/", {"email": "ann", "city": "Bonn"}))
    assert found.value("field:email") == "ann"
    monkeypatch.setattr("django_ratelimiter.identity.fields_of", None)
    assert (found.value("field:city"), found.value("field:zip")) == ("bonn", None)
