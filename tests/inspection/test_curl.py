"""`curl` commands as people and browsers write them."""

from __future__ import annotations

import pytest

from django_ratelimiter.inspection.question import Question, QuestionError, is_curl, parse_curl

CHROME = """curl 'https://example.org/api/export/?page=2' \\
  -H 'accept: application/json' \\
  -H 'x-api-key: secret' \\
  -b 'sessionid=abc; csrftoken=def' \\
  -H $'x-note: it\\'s \\u0021' \\
  --data-raw $'{"name":"a\\\\nb"}' \\
  --compressed ;"""


@pytest.mark.parametrize(
    ("command", "method", "path", "headers"),
    [
        ("curl http://example.org/a/", "GET", "/a/", {}),
        ("curl example.org", "GET", "/", {}),
        ("curl -X PUT -d a=1 -d b=2 http://example.org/", "PUT", "/", {}),
        ("curl -d @file http://example.org/", "POST", "/", {}),
        ("curl -XDELETE http://example.org/x?y=z", "DELETE", "/x?y=z", {}),
        ("curl -G -d a=1 --url http://example.org/?b=2", "GET", "/?b=2&a=1", {}),
        ("curl -I http://example.org/", "HEAD", "/", {}),
        ("curl -sS -u ann:secret http://example.org/", "GET", "/", {"Authorization": "Basic ann:secret"}),
        ("curl --json '{}' http://example.org/", "POST", "/", {}),
        ("curl --proxy p:1 --unknown x -o file http://example.org/a", "GET", "/a", {}),
        ("/usr/bin/curl -H 'Host: other' -H ':authority: x' http://example.org/", "GET", "/", {"Host": "other"}),
    ],
)
def test_a_command_is_read(command: str, method: str, path: str, headers: dict[str, str]) -> None:
    asked = parse_curl(command, Question())
    assert (asked.method, asked.path, dict(asked.headers)) == (method, path, {"Host": "example.org"} | headers)


def test_a_command_that_a_browser_has_copied() -> None:
    asked = parse_curl(CHROME.replace(" ;", ""), Question(ip="203.0.113.7"))
    assert (asked.method, asked.path, asked.ip) == ("POST", "/api/export/?page=2", "203.0.113.7")
    assert dict(asked.headers)["Cookie"] == "sessionid=abc; csrftoken=def"
    assert dict(asked.headers)["x-note"] == "it's !"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "wget http://example.org/",
        "curl",
        "curl -X",
        "curl 'http://x/",
        "curl -H nothing http://x/",
        "curl http://[::1/",
        "curl http://a\uff0fb/",  # a slash once it is normalised
    ],
)
def test_what_is_no_command_is_said(command: str) -> None:
    with pytest.raises(QuestionError) as caught:
        parse_curl(command, Question())
    assert str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"$'\ud83d\ude00'", "\U0001f600"),  # as Chrome writes what has two UTF-16 units
        (r"$'caf\u00e9'", "café"),
        (r"$'\ud83d'", "\ufffd"),
        ("'\udcff'", "\ufffd"),  # a byte of a shell's argument that is no UTF-8
    ],
)
def test_what_is_no_character_can_be_sent_on(written: str, meant: str) -> None:
    assert dict(parse_curl(f"curl -b a={written} http://example.org/", Question()).headers)["Cookie"] == f"a={meant}"


@pytest.mark.parametrize(
    "command",
    [
        "curl 'https://shop.example/api?rule=gold&x=1'",
        """curl -d '{"rule": "gold"}' https://shop.example/api""",
        "/usr/bin/curl https://shop.example/ -d 'see bug#12345678'",
        "curl\thttps://shop.example/?reference=gold#12345678",
    ],
)
def test_a_command_is_no_reference(command: str) -> None:
    assert is_curl(command)
