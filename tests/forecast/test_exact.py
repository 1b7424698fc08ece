"""`replay` on logs in each format: what each rule rejects, caller by caller, is what the reference rejects."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command

from django_ratelimiter.engine import Algorithm, Charge, Limit
from tests.reference import Reference

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.forecast.views")]

START_US = 1_795_168_800_000_000
OWN = r"(?P<time>\S+) took (?P<duration_ms>\S+): (?P<address>\S+) (?P<request>\S+ \S+) (?P<status>\d+)"
TIMELESS = ("common", "combined")
BURSTS, BURST = ("token_bucket", "gcra"), 3


class Sent(NamedTuple):
    at_us: int
    took_us: int
    address: str


def traffic(number: int) -> Iterator[Sent]:
    random, at = Random(8), START_US
    for _ in range(number):
        at += random.choice((0, 0, 100_000, 400_000, 1_000_000, 3_200_000))
        caller = int(30 * random.random() ** 3)
        yield Sent(at, random.choice((20_000, 300_000, 8_000_000)), f"203.0.113.{caller}")


def line(name: str, sent: Sent) -> str:
    end = datetime.fromtimestamp((sent.at_us + sent.took_us) // 1_000_000, UTC)
    at = sent.at_us
    if name in TIMELESS:
        return f'{sent.address} - - [{end:%d/%b/%Y:%H:%M:%S +0000}] "GET /plain/?a=1 HTTP/1.1" 200 5' + (
            ' "-" "curl"' if name == "combined" else ""
        )
    if name == "json":
        ended = at + sent.took_us
        return json.dumps({
            "msec": f"{ended // 1_000_000}.{ended % 1_000_000 // 1_000:03}", "remote_addr": sent.address,
            "request": "GET /plain/ HTTP/1.1", "status": "200", "request_time": f"{sent.took_us / 1_000_000:.3f}",
        })  # fmt: skip
    return f"{at + sent.took_us} took {sent.took_us // 1_000}: {sent.address} GET /plain/ 200"


def rule(algorithm: str, window: int) -> str:
    more = ", max_delay_ms: 3000" if algorithm == "leaky_bucket" else ""
    more += f", burst: {BURST}" if algorithm in BURSTS else ""
    return (
        f"  {algorithm.replace('_', '-')}:\n    mode: enforce\n    partition_by: [ip]\n"
        f"    limits: [{{algorithm: {algorithm}, quota: 5, window_seconds: {window}{more}}}]\n"
    )


def rejected(algorithm: Algorithm, window: int, requests: Iterable[tuple[int, int]]) -> int:
    """How many requests of a caller are rejected, each of which has a start and an end in microseconds."""
    limit = Limit(5, window, algorithm, burst=BURST if algorithm in BURSTS else None)
    charge = Charge("caller", limit, max_delay=3.0 if algorithm == "leaky_bucket" else None)
    reference, answers = Reference(), []
    for at, end in sorted(requests):
        reference.release(answer for until, answer in answers if until <= at)
        [answer] = reference.check([charge], at)
        answers.append((end, answer))
    return sum(not answer.allowed for _end, answer in answers)


@pytest.fixture
def forecast(tmp_path: Path, settings: Any) -> Any:
    settings.MIDDLEWARE = ["django_ratelimiter.middleware.RateLimitMiddleware"]

    def go(lines: list[str], rules: str, *options: str) -> dict[str, Any]:
        (tmp_path / "rules.yaml").write_text(f"rules:\n{rules}")
        (tmp_path / "log").write_text("".join(f"{each}\n" for each in lines))
        out = io.StringIO()
        words = [str(tmp_path / "log"), "--rules", str(tmp_path / "rules.yaml"), "--json", "--no-progress"]
        with suppress(CommandError):  # some rules are not known
            call_command("ratelimit", "replay", *words, "--top", "99", *options, stdout=out)
        return json.loads(out.getvalue())["rules"]  # type: ignore[no-any-return]

    return go


@pytest.mark.parametrize("name", ["common", "combined", "json", "own"])
@pytest.mark.parametrize("window", [5, 30, 90])
def test_each_algorithm_rejects_what_the_reference_rejects(forecast: Any, name: str, window: int) -> None:
    sent = sorted(traffic(1_500), key=lambda each: each.at_us + each.took_us)  # as servers write
    rules = "".join(rule(algorithm, window) for algorithm in Algorithm)
    found = forecast([line(name, each) for each in sent], rules, "--format", OWN if name == "own" else name)
    by_caller = defaultdict(list)
    for each in sent:
        end = each.at_us + each.took_us
        at = end // 1_000_000 * 1_000_000 if name in TIMELESS else each.at_us
        by_caller[each.address].append((at, end))
    for algorithm in Algorithm:
        figures = found[algorithm.replace("_", "-")]
        kinds = {each["kind"] for each in figures["blind"]}
        wanted = {"resolution"} if window < 30 and name in TIMELESS else set()
        wanted |= {"duration"} if algorithm == "concurrency" and name in TIMELESS else set()
        assert (kinds, figures["is_known"]) == (wanted, not wanted)
        if wanted:
            continue
        each = [rejected(algorithm, window, requests) for requests in by_caller.values()]
        total = {"low": sum(each), "about": sum(each), "high": sum(each)}
        assert figures["after"]["requests"] == figures["newly"]["requests"] == total
        assert figures["after"]["callers"]["about"] == sum(map(bool, each)) > 0
        assert {top["caller"]: top["after"] for top in figures["top_callers"]} == {
            f"ip:{address}": number for address, number in zip(by_caller, each, strict=True) if number
        }
