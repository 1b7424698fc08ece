"""Whatever is sent: no exception, nobody takes another's address, and no key without bound.

TWIN_STEPS, as in `tests/unit/test_twins.py`: so many inputs are tried (2,000; 20,000 in `make test ARGS=--long`).
Each input is made from its number; to see one again, call its test's `…_input(number)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.test import override_settings

from django_ratelimiter import identity
from django_ratelimiter.databases import spelled
from django_ratelimiter.identity import digest, identify, partition
from django_ratelimiter.values.partitions import MAX_VALUE

INPUTS = int(os.environ.get("TWIN_STEPS", "2_000"))

#: What no combination of three values may be longer than: names, and values escaped or hashed.
LONGEST = 3 * (110 + 3 * MAX_VALUE)

ADDRESSES = [
    *["6.6.6.6", "10.0.0.9", "fd00::9", "::1", "[2001:db8::6]:80", "::ffff:10.0.0.1", "fe80::1%eth0", "6.6.6.6:1"]
]
WORDS = [
    *ADDRESSES,
    *["", "unknown", "_hidden", "unix:", ",", ";", "=", '"', "\\", "for=", "by=", "For=6.6.6.6", 'for="', "host=a"],
    *["\x00", "\xff", "\xe9\xe9", "%", "|", "%7C", "a" * 90, "[", "]", "/8", "1e9", "\t", "'", "0x6.6.6.6", "٣.6.6.6"],
    " ",
]


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "is_known_api_key", lambda *_asked: False)


def scribble(random: Random) -> str:
    """What somebody might write who wants to be somebody else, or just garbage."""
    kind = random.random()
    if kind < 0.15:
        return "".join(map(chr, random.randbytes(random.randrange(60))))
    if kind < 0.2:
        return random.choice(WORDS) * random.randrange(300)
    return random.choice([",", ", ", "", ";"]).join(random.choices(WORDS, k=random.randrange(8)))


def address(random: Random) -> str:
    """A client's address: no proxy of ours has it."""
    if random.random() < 0.5:
        return str(IPv4Address(0xC6336400 + random.getrandbits(8)))
    return str(IPv6Address((0x20010DB8 << 96) + random.getrandbits(96)))


def proxy(random: Random) -> str:
    return random.choice([f"10.0.0.{random.randrange(1, 255)}", f"fd00::{random.randrange(1, 999):x}"])


#: TRUSTED_PROXIES, and the header that our proxies write.
SETUPS: list[tuple[Any, str]] = [
    (["10.0.0.0/8", "fd00::/8", "unix"], "x"),
    (["10.0.0.0/8", "fd00::/8", "unix", "x-forwarded-for"], "x"),
    (["10.0.0.0/8", "fd00::/8", "unix", "forwarded"], "f"),
]


def x_element(random: Random, hop: str) -> str:
    if ":" in hop:
        return random.choice([hop, f"[{hop}]", f"[{hop}]:4711"])
    return random.choice([hop, f"{hop}:80", f"::ffff:{hop}"])


def f_element(random: Random, hop: str) -> str:
    node = f'"[{hop}]"' if ":" in hop else random.choice([hop, f'"{hop}:80"'])
    host = scribble(random)[:200].replace("\\", "\\\\").replace('"', '\\"').replace(",", "")
    pairs = [f"for={node}", random.choice(["proto=https", "by=_us", f'host="{host}"'])]
    return random.choice([";", "; "]).join(pairs)


def address_input(number: int) -> tuple[dict[str, str], Any, str]:
    """What the server is told of a request that came through one to four of our proxies, and who sent it.

    Where the first proxy does not tell whom it speaks for, the proxy itself has to count as who sent it.
    """
    random = Random(number)
    counted = random.random() < 0.3
    trusted, header = random.choice(SETUPS)
    client = address(random)
    hops = [client, *(proxy(random) for _ in range(random.randrange(4)))]
    if counted:
        trusted = [len(hops), {"x": "x-forwarded-for", "f": "forwarded"}[header]]
    meta = {"REMOTE_ADDR": proxy(random) if counted or random.random() < 0.8 else random.choice(["", "unix:"])}
    sent = {"x": scribble(random), "f": scribble(random)}
    element = x_element if header == "x" else f_element
    elements = [element(random, hop) for hop in hops]
    if random.random() < 0.1:
        hidden = random.choice(["unknown", "_hidden", "", "10.0.0.300"])
        elements[0] = hidden if header == "x" else f"for={hidden}"
        client = (hops[1:] or [meta["REMOTE_ADDR"]])[0]
    before = [sent[header]] if random.random() < 0.9 else []
    sent[header] = random.choice([",", ", ", " ,\t"]).join(before + elements)
    for name, key in (("x", "HTTP_X_FORWARDED_FOR"), ("f", "HTTP_FORWARDED")):
        if name == header or random.random() < 0.8:
            meta[key] = sent[name]
    return meta, trusted, client


def settings_of(trusted: Any) -> Any:
    return override_settings(RATELIMITER={"TRUSTED_PROXIES": trusted})


def in_groups(first: int, count: int, make: Any, group: Any) -> Iterator[tuple[Any, list[tuple[int, Any]]]]:
    """Inputs that share their settings together: a change of settings takes longer than an input."""
    groups: dict[str, tuple[Any, list[tuple[int, Any]]]] = {}
    for number in range(first, first + count):
        made = make(number)
        key = group(made)
        groups.setdefault(repr(key), (key, []))[1].append((number, made))
    yield from groups.values()


def ip_of(meta: dict[str, str]) -> str | None:
    return identify(SimpleNamespace(META=meta)).ip  # type: ignore[arg-type]


def test_nobody_takes_anothers_address_behind_our_proxies() -> None:
    for trusted, inputs in in_groups(0, INPUTS // 2, address_input, lambda made: made[1]):
        with settings_of(trusted):
            for number, (meta, _, client) in inputs:
                assert ip_of(meta) == (None if client in ("", "unix:") else ip_of({"REMOTE_ADDR": client})), number


def garbage_input(number: int) -> dict[str, str]:
    random = Random(number)
    names = ["REMOTE_ADDR", "HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_API_KEY", "HTTP_X_A", "HTTP_COOKIE"]
    return {name: scribble(random) for name in names if random.random() < 0.8}


def test_any_headers_have_an_answer() -> None:
    names = ["ip", "header:X-A", "api_key"]
    setups: list[Any] = [(), 1, 20, SETUPS[0][0], SETUPS[2][0], ["unix"]]
    for place, trusted in enumerate(setups):
        with settings_of(trusted):
            for number in range(place, INPUTS // 4, len(setups)):
                meta = garbage_input(number)
                found = identify(SimpleNamespace(META=meta))  # type: ignore[arg-type]
                values = [found.value(name) for name in names]
                assert all(value is None or value for value in values), number
                assert values[2] is None, number  # an invented key is nobody's
                assert found.ip is None or len(found.ip) < 50, number
                if not trusted:  # nobody is believed
                    assert found.ip == ip_of({"REMOTE_ADDR": meta.get("REMOTE_ADDR", "")}), number
                value = partition(found, names[:2])
                assert (value is None) == (None in values[:2]), number
                assert value is None or (len(value) < LONGEST and len(digest(value)) == 22), number


FORM, JSON = "application/x-www-form-urlencoded", "application/json"
BODIES = [
    (FORM, b"a=1&email=ann%40example.com&b=2"),
    (FORM, b"email=ann&email=bob&email"),
    (JSON, b'{"email": "ann", "a": [1, {"email": "bob"}]}'),
    (JSON, b'{"email": 12.50, "email": null, "b": "\\ud800"}'),
    (
        "multipart/form-data; boundary=XX",
        b'--XX\r\nContent-Disposition: form-data; name="email"\r\n\r\nann\r\n--XX--\r\n',
    ),
    (
        "multipart/form-data; boundary=XX",
        b'--XX\r\nContent-Disposition: form-data; name="email"; filename="x"\r\nContent-Transfer-Encoding: base64'
        b"\r\n\r\nYW5u\r\n--XX--\r\n",
    ),
]
KINDS = [kind for kind, _ in BODIES] + ["", "text/plain", "multipart/form-data", "application/x+json", "a;b;c", ";"]
PIECES = [*rb"""& = % + " \ { [ } ] , :""".split(), b"\r\n", b"--XX", b"\x00", b"\xff", b"9" * 99]
CHARSETS = ["utf-8", "utf-7", "utf-16", "latin-1", "rot13", "base64", "idna", "punycode", "none", '"', "utf-8; x"]


def body_input(number: int) -> tuple[str, str, bytes, bool]:
    """Method, content type, body, and whether it comes as an ASGI server hands it on."""
    random = Random(number)
    kind, body = random.choice(BODIES)
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        place = random.randrange(len(body) + 1)
        piece = random.choice([random.choice(PIECES), random.randbytes(3), body[: random.randrange(20)]])
        body = body[:place] + piece * random.choice([1, 1, 1, 30]) + body[place + random.choice([0, 0, 1, 9]) :]
    if random.random() < 0.01:
        body = body * (70_000 // len(body))
    if random.random() < 0.15:
        kind = random.choice(KINDS)
    if random.random() < 0.15:
        kind += f"; charset={random.choice(CHARSETS)}"
    if random.random() < 0.05:
        kind += "".join(map(chr, random.choices(range(32, 256), k=5)))
    return random.choice(["POST", "POST", "PUT"]), kind, body, random.random() < 0.5


def request_of(method: str, kind: str, body: bytes, on_asgi: bool) -> Any:
    if on_asgi:
        headers = [(b"content-type", kind.encode("latin1")), (b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": method, "path": "/", "query_string": b"", "headers": headers}
        return ASGIRequest(scope, BytesIO(body))
    made = {"CONTENT_TYPE": kind, "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
    return WSGIRequest({"REQUEST_METHOD": method, "PATH_INFO": "/", **made})


@pytest.mark.filterwarnings("ignore:Support for non-ascii encoding names:DeprecationWarning")  # Django looks them up
def test_any_body_has_an_answer_and_is_left_to_the_view() -> None:
    read = 0
    for number in range(INPUTS // 4):
        made = body_input(number)
        request = request_of(*made)
        value = identify(request).value("field:email")
        assert value is None or value, number
        assert value is None or len(partition(identify(request), ["field:email"]) or "") < LONGEST, number
        if value is not None and request.method == "POST" and not made[1].startswith("application/"):
            assert spelled("field:email", request.POST["email"]) == value, number
        assert request.body == made[2], number
        if value is not None and made[1] == FORM and request.method == "POST":
            assert spelled("field:email", request.POST["email"]) == value, number
        read += value is not None
    assert read > INPUTS // 20  # or else the inputs are too broken to tell anything
