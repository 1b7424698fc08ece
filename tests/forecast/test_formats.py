"""The kinds of logs that are recognised, by a line of each; and what decides the kind of a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.forecast.logs.formats import UNREADABLE, AccessLogLine, Wanted, WrongFormat, find_format
from django_ratelimiter.forecast.logs.reading import LogFiles
from django_ratelimiter.forecast.logs.times import TimeReader
from django_ratelimiter.management.traffic import read_fields

AT = 1_795_370_400_000_000  # 2026-11-22 18:00:00 UTC

CADDY = {
    "level": "info", "ts": 1795370400.25, "logger": "http.log.access", "msg": "handled request", "duration": 0.25,
    "request": {"remote_ip": "192.0.2.7", "method": "GET", "uri": "/a?b=c", "headers": {"X-Org": ["acme"]}},
    "user_id": "", "status": 200,
}  # fmt: skip
TRAEFIK = {
    "ClientAddr": "192.0.2.7:51234", "ClientHost": "192.0.2.7", "ClientUsername": "-", "DownstreamStatus": 200,
    "Duration": 250_000_000, "RequestMethod": "GET", "RequestPath": "/a?b=c",
    "StartUTC": "2026-11-22T18:00:00.000000000Z", "time": "2026-11-22T18:00:00Z", "level": "info", "msg": "",
}  # fmt: skip
ECS = {
    "@timestamp": "2026-11-22T18:00:00.250Z", "source": {"ip": "192.0.2.7", "port": 51234}, "user": {"name": ""},
    "http": {"request": {"method": "GET"}, "response": {"status_code": 200}},
    "url": {"original": "/a?b=c", "path": "/a"},
    "event": {"duration": 250_000_000, "dataset": "nginx.access"}, "message": "",
}  # fmt: skip
FLAT_ECS = {
    "@timestamp": "2026-11-22T18:00:00.250Z", "source.ip": "192.0.2.7", "http.request.method": "GET", "url.path": "/a",
    "http.response.status_code": 200, "event.start": "2026-11-22T18:00:00Z", "event.end": "2026-11-22T18:00:00.250Z",
}  # fmt: skip
GCP = {
    "timestamp": "2026-11-22T18:00:00Z", "receiveTimestamp": "2026-11-22T18:00:01Z", "severity": "INFO",
    "httpRequest": {"requestMethod": "GET", "requestUrl": "https://shop.example/a?b=c", "status": 200,
                    "remoteIp": "192.0.2.7", "latency": "0.25s"},
}  # fmt: skip
CLOUDFLARE = {
    "ClientIP": "192.0.2.7", "ClientRequestHost": "shop.example", "ClientRequestMethod": "GET", "RayID": "8f",
    "ClientRequestURI": "/a?b=c", "EdgeStartTimestamp": "2026-11-22T18:00:00Z", "EdgeResponseStatus": 200,
    "EdgeEndTimestamp": "2026-11-22T18:00:00.25Z",
}  # fmt: skip
GUNICORN = {"t": "[22/Nov/2026:18:00:00 +0000]", "h": "192.0.2.7", "r": "GET /a?b=c HTTP/1.1", "s": "200", "u": "-"}
COMMON = '192.0.2.7 - - [22/Nov/2026:18:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 12'

#: The name of the format, a line, and its duration.
KINDS: Sequence[tuple[str, Any, int]] = [
    ("json", {**CADDY, "duration": "250ms"}, 250_000),
    ("json", TRAEFIK, 250_000),
    ("json", ECS, 250_000),
    ("json", FLAT_ECS, 250_000),
    ("json", CLOUDFLARE, 250_000),
    (
        "json",
        {**CLOUDFLARE, "EdgeStartTimestamp": AT * 1_000, "EdgeEndTimestamp": AT * 1_000 + 250_000_000},
        250_000,
    ),
    ("json", GUNICORN, -1),
    ("combined", COMMON, -1),
]


def text_of(line: Any) -> str:
    return line if isinstance(line, str) else json.dumps(line)


@pytest.mark.parametrize(("name", "line", "duration_us"), KINDS)
@pytest.mark.parametrize("chosen", [True, False])
def test_each_kind_is_recognised_and_says_when_a_request_began(
    name: str, line: Any, duration_us: int, chosen: bool
) -> None:
    """Caddy and ECS write the end of the request, Traefik and Cloudflare its start."""
    text = text_of(line)
    found = find_format(Wanted(name if chosen else "auto"), [text], TimeReader(UTC))
    parsed = found.parse(text + "\n", 0)
    assert found.name == name
    assert parsed == AccessLogLine(AT, "GET", "/a", "192.0.2.7", "", 200, duration_us, (), 0)


#: A line of each kind that the docs describe by an expression, and its duration.
DESCRIBED = {
    "ALB": (
        "https 2026-11-22T18:00:00.250000Z app/web/50dc6c495c0c9188 192.0.2.7:51234 10.0.0.1:80 0.000 0.250 0.000 200 "
        '200 34 366 "GET https://shop.example:443/a?b=c HTTP/1.1" "curl/8.0" ECDHE TLSv1.3 arn:aws:x "Root=1-x"',
        250_000,
    ),
    "HAProxy": (
        "Nov 22 18:00:01 lb haproxy[12]: 192.0.2.7:51234 [22/Nov/2026:18:00:00.000] web~ app/app1 0/0/1/240/250 200 "
        '512 - - ---- 2/2/1/1/0 0/0 "GET /a?b=c HTTP/1.1"',
        250_000,
    ),
    "uWSGI": (
        "[pid: 12|app: 0|req: 1/1] 192.0.2.7 () {40 vars in 741 bytes} [Sun Nov 22 18:00:00 2026] GET /a?b=c => "
        "generated 12 bytes in 250 msecs (HTTP/1.1 200) 7 headers in 241 bytes (1 switches on core 0)",
        250_000,
    ),
    "Envoy": (
        '[2026-11-22T18:00:00.000Z] "GET /a?b=c HTTP/2" 200 - via_upstream - "-" 0 0 12 250 249 "192.0.2.7" "curl" '
        '"8f" "shop.example" "-"',
        250_000,
    ),
    "Heroku": (
        '2026-11-22T18:00:00.250000+00:00 heroku[router]: at=info method=GET path="/a?b=c" host=shop.example '
        'request_id=8f fwd="192.0.2.7" dyno=web.1 connect=1ms service=250ms status=200 bytes=13 protocol=https',
        250_000,
    ),
    "Daphne": ('::1:42074 - - [22/Nov/2026:18:00:00] "GET /a?b=c" 200 12', -1),
    "IIS": ("2026-11-22 18:00:00 10.0.0.1 GET /a b=c 443 - 192.0.2.7 curl - 200 0 0 250", 250_000),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_each_expression_of_the_docs_reads_its_log(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/change-rules.md").read_text()
    [expression] = [row.split("`")[1] for row in page.splitlines() if row.startswith(f"| **{name}**")]
    line, duration_us = DESCRIBED[name]
    parsed = find_format(Wanted(expression.replace("\\|", "|")), [line], TimeReader(UTC)).parse(line + "\n", 0)
    path = "https://shop.example:443/a" if name == "ALB" else "/a"
    address = "::1" if name == "Daphne" else "192.0.2.7"
    start = AT - 250_000 * (name == "IIS")
    assert parsed == AccessLogLine(start, "GET", path, address, "", 200, duration_us, (), 0)


def test_comments_of_a_log_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"#Version: 1.0\n#Fields: date time\n{COMMON}\n#Fields: date time\n{COMMON}\n")
    files = LogFiles([str(path)], Wanted(), UTC)
    assert len([*files]) == 2
    assert files.files[0].unread == 0


def test_date_and_time_may_be_separated_by_a_tab() -> None:
    wanted = Wanted(r"(?P<time>\S+\s\S+)\t(?P<method>\S+)\t(?P<path>\S+)")
    parsed = find_format(wanted, [], TimeReader(UTC)).parse("2026-11-22\t18:00:00\tGET\t/a", 0)
    assert parsed[:3] == (AT, "GET", "/a")


def test_start_of_a_log_can_be_named() -> None:
    line = text_of(GCP)
    found = find_format(Wanted(fields={"start": "timestamp"}), [line], TimeReader(UTC)).parse(line, 0)
    assert found == AccessLogLine(AT, "GET", "https://shop.example/a", "192.0.2.7", "", 200, 250_000, (), 0)


@pytest.mark.parametrize(("name", "line", "duration_us"), KINDS)
@pytest.mark.parametrize("other", ['{"level": "info", "time": "x", "msg": "starting"}', "Starting.", "", "{", "[1]"])
def test_first_lines_of_another_kind_do_not_decide(name: str, line: Any, duration_us: int, other: str) -> None:
    found = find_format(Wanted(), [other, text_of(line), text_of(line)], TimeReader(UTC))
    assert found.name == name
    assert found.parse(text_of(line), 0).duration_us == duration_us


def test_fields_that_the_first_objects_lack_are_found() -> None:
    lines = [json.dumps(GUNICORN), json.dumps({**GUNICORN, "D": 5})]
    assert find_format(Wanted(), lines, TimeReader(UTC)).parse(lines[1], 0).duration_us == 5


def test_fields_can_be_mapped() -> None:
    line = json.dumps({"at": {"when": AT}, "call": {"verb": "PUT", "to": ["/a b?x"]}, "who": "192.0.2.7", "took": 2.0})
    wanted = Wanted(
        fields=read_fields(["time=at.when", "method=call.verb", "path=call.to.0", "ip=who", "duration_s=took"])
    )
    found = find_format(wanted, [line], TimeReader(UTC)).parse(line, 0)
    assert found[:4] == (AT - 2_000_000, "PUT", "/a b", "192.0.2.7")
    started = {"start" if role == "end" else role: field for role, field in wanted.fields.items()}
    assert find_format(Wanted(fields=started), [line], TimeReader(UTC)).parse(line, 0).time_us == AT
    mapped = Wanted(
        fields=read_fields(["path=request.uri", "ip=request.remote_ip", "time=ts", "method=request.method"])
    )
    text = text_of({**CADDY, "path": "/wrong", "time": "wrong"})
    assert find_format(mapped, [text], TimeReader(UTC)).parse(text, 0)[1:4] == ("GET", "/a", "192.0.2.7")


def test_groups_can_be_mapped_too() -> None:
    """A field that is named, and is not used, would be a silent error."""
    text = r"(?P<time>\S+) (?P<peer>\S+) (?P<request>\S+ \S+) (?P<duration_s>\S+)"
    wanted = Wanted(text, fields=read_fields(["start=time", "ip=peer"]))
    found = find_format(wanted, [], TimeReader(UTC))
    assert found.parse(f"{AT} 192.0.2.7 GET /a 2", 0)[:4] == (AT, "GET", "/a", "192.0.2.7")
    with pytest.raises(WrongFormat, match="has no group 'who'"):
        find_format(Wanted(text, fields={"user": "who"}), [], TimeReader(UTC))
    with pytest.raises(WrongFormat, match="has no field 'who'"):
        find_format(Wanted(fields={"user": "who"}), [COMMON], TimeReader(UTC))


def test_a_field_of_a_field_can_be_an_identity() -> None:
    text = text_of(CADDY)
    found = find_format(
        Wanted(identities=dict.fromkeys(["request.headers.X-Org.0", "request.headers.X-None.0"], "x")),
        [text],
        TimeReader(UTC),
    )
    assert found.parse(text, 0).more == ("acme", "")


def test_a_misspelt_field_is_named() -> None:
    line = '{"time": 1, "request": "GET /a HTTP/1.1", "remote_user": "ann"}'
    with pytest.raises(
        WrongFormat, match=r"None of the first lines has the field 'usr'. The fields are: time, request, remote_user."
    ):
        find_format(Wanted(fields={"user": "usr"}), [line], TimeReader(UTC))


@pytest.mark.parametrize("given", ["path", "path=", "colour=x", "=x"])
def test_a_wrong_mapping_is_named(given: str) -> None:
    with pytest.raises(CommandError, match="write ROLE=FIELD"):
        read_fields([given])


def test_what_is_missing_is_named_with_the_fields_that_are_there() -> None:
    with pytest.raises(WrongFormat, match=r"--field request=NAME. The fields are: time, call\.verb, call\.to\."):
        find_format(Wanted(), ['{"time": 2, "call": {"verb": "GET", "to": ["/"]}}'], TimeReader(UTC))


@pytest.mark.parametrize("other", [{"path": "/srv/index.py"}, {"request": "GET /srv/index.py HTTP/1.1"}])
def test_fields_with_different_paths_are_named(other: dict[str, str]) -> None:
    line = {"time": AT, "method": "GET", "url": "https://shop.example/s%20s/?q=1", **other}
    with pytest.raises(WrongFormat, match=r"Several fields .*url \(/s s/\).* Name the right one: --field path=NAME\."):
        find_format(Wanted(), [json.dumps(line)], TimeReader(UTC))
    for more, fields in (
        ({}, {"path": "url"}),
        ({"request_uri": "https://shop.example/s%20s/"}, {}),
        (dict.fromkeys(other, "/s s/"), {}),
        (dict.fromkeys(other, "request-12"), {"path": "url"}),
    ):
        text = json.dumps(line | more)
        assert (
            find_format(Wanted(fields=fields), [text], TimeReader(UTC))
            .parse(text, 0)
            .path.endswith(("/s%20s/", "/s s/"))
        )


def test_a_dash_is_a_missing_value() -> None:
    line = json.dumps({**GUNICORN, "h": "-", "s": "-", "D": "-", "key": "-"})
    parsed = find_format(Wanted(identities={"key": "x"}), [line], TimeReader(UTC)).parse(line, 0)
    assert parsed[3:8] == ("", "", 0, -1, ("",))


@pytest.mark.parametrize("duration", ["soon", "1m2s", "-1", "inf", "1,5"])
def test_a_duration_that_is_none_is_unreadable(duration: Any) -> None:
    """Else the request would seem to take no time."""
    line = json.dumps({**GUNICORN, "request_time": duration})
    with pytest.raises(ValueError, match="has no duration in"):
        find_format(Wanted("json"), [line], TimeReader(UTC)).parse(line, 0)


@pytest.mark.parametrize("request_", ["-", "", r"\x16\x03\x01", "<BADREQ>", "GET"])
@pytest.mark.parametrize(("status", "is_answered"), [("400", True), ("408", True), ("200", False), ("-", False)])
def test_what_is_no_request_is_one_that_the_server_has_answered(request_: str, status: str, is_answered: bool) -> None:
    for line in (
        COMMON.replace("GET /a?b=c HTTP/1.1", request_).replace(" 200 ", f" {status} "),
        json.dumps({**GUNICORN, "r": request_, "s": status}),
    ):
        found = find_format(Wanted("json" if line[0] == "{" else "common"), [line], TimeReader(UTC))
        if is_answered:
            assert found.parse(line, 0)[:3] == (AT, "", "")
        else:
            with pytest.raises(ValueError, match="has no request in"):
                found.parse(line, 0)


@given(st.sampled_from([text_of(line) for _name, line, _duration in KINDS]), st.data())
def test_a_changed_line_is_read_as_it_was_or_not_at_all(text: str, data: st.DataObject) -> None:
    """Or as another request; no parser fails in another way, or finds an address that is none."""
    found = find_format(Wanted(), [text], TimeReader(UTC))
    place = data.draw(st.integers(0, len(text)))
    changed = text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 3)) :]
    try:
        parsed = found.parse(changed, 0)
    except UNREADABLE:
        return
    assert parsed.time_us >= 0
    assert parsed.address == "" or parsed.address[-1].isalnum()
