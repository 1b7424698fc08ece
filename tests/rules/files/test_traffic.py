"""`plan --traffic`: the effect of a plan on the requests of a log, which can stop it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from django_ratelimiter.models import Rule, RuleLimit, Tier
from django_ratelimiter.usage.times import now
from tests.forecast.traffic import record
from tests.making import make_rule, managed

pytestmark = pytest.mark.django_db

plan = partial(managed, "plan")

START = datetime(2023, 11, 14, 22, tzinfo=UTC)
FILE = """\
rules:
  pages:
    mode: enforce
    partition_by: [ip]
    limits:
      - {algorithm: fixed_window, quota: 2, window_seconds: 3600}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The arguments of a plan: today 8 an hour; one of two callers sends three, the other ten."""
    make_rule("pages", 8, None, "fixed_window", {"window_seconds": 3_600}, partition_by=["ip"], owner="file")
    lines = [
        f"203.0.113.{1 if number < 10 else 2} - - [{START + timedelta(seconds=number):%d/%b/%Y:%H:%M:%S} +0000] "
        f'"GET /hello/ HTTP/1.1" 200 5 "-" "-"\n'
        for number in range(13)
    ]
    (tmp_path / "access.log").write_text("".join(lines))
    (tmp_path / "limits.yaml").write_text(FILE)
    return [str(tmp_path / "limits.yaml"), "--traffic", str(tmp_path / "access.log")]


def test_a_share_needs_traffic(words: list[str]) -> None:
    code, text = plan(words[0], "--max-newly-rejected", "1%")
    assert (code, text.splitlines()[-1]) == (1, "--max-newly-rejected needs --traffic.")


def test_fields_of_the_log_can_be_identities(words: list[str], tmp_path: Path) -> None:
    pattern = r"(?P<forwarded>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] \"(?P<request>[^\"]+)\" (?P<status>\d+)"
    code, text = plan(*words, "--traffic-format", pattern, "--identity", "forwarded=ip")
    assert code == 2
    assert "Newly rejected: 7 requests (53.8 %), 2 callers (100 %)." in text
    assert plan(*words, "--identity", "forwarded=nonsense(")[0] == 1


@pytest.fixture
def sampled(words: list[str]) -> list[str]:
    """The arguments of a plan: of 40 sampled callers, ten sent five requests in an hour, the others one."""
    start = now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=30)
    callers = {f"{number:016x}": [5 if number < 10 else 1] for number in range(40)}
    record(start, callers, rule="pages", tier="")
    return [words[0], "--traffic", "samples"]


@pytest.mark.parametrize(
    ("arguments", "option", "share", "code"),
    [
        ("words", "--max-newly-rejected", "99%", 1),
        ("words", "--max-newly-rejected", "100%", 2),
        ("words", "--max-newly-rejected-requests", "53%", 1),
        ("words", "--max-newly-rejected-requests", "54", 2),
        ("sampled", "--max-newly-rejected", "24%", 1),
        ("sampled", "--max-newly-rejected", "25%", 2),
        ("sampled", "--max-newly-rejected-requests", "37%", 1),
        ("sampled", "--max-newly-rejected-requests", "38%", 2),
    ],
)
def test_it_fails_beyond_a_share(
    request: pytest.FixtureRequest, arguments: str, option: str, share: str, code: int
) -> None:
    found, text = plan(*request.getfixturevalue(arguments), option, share)
    assert found == code
    assert ("This would newly reject too many:" in text) is (code == 1)


def test_samples_tell_how_many_it_would_reject(sampled: list[str]) -> None:
    text = plan(*sampled)[1]
    said = "pages: About 160 (87 to 295) of about 640 callers would be rejected at least once. "
    said += "Now: probably 0, at most 61."
    assert f"From recorded samples, the last 7 days:\n{said}\n" in text
    assert "Newly rejected: about 480 (182 to 778) requests (37.5 %), about 160 (87 to 295) callers (25 %)." in text


def test_without_samples_nobody_can_tell(words: list[str]) -> None:
    code, text = plan(words[0], "--traffic", "samples")
    assert (code, "nothing is recorded in this time" in text) == (2, True)
    assert plan(words[0], "--traffic", "samples", "--max-newly-rejected", "50%")[0] == 1


def test_a_rule_in_shadow_rejects_nobody(sampled: list[str]) -> None:
    path = Path(sampled[0])
    path.write_text(path.read_text().replace("enforce", "shadow"))
    code, text = plan(*sampled, "--max-newly-rejected", "0%")
    assert (code, "No enforced rule changes" in text) == (2, True)


def test_what_was_in_shadow_newly_rejects_all_that_it_counted(sampled: list[str]) -> None:
    Rule.objects.update(mode="shadow")
    RuleLimit.objects.update(quota=2)
    text = plan(*sampled)[1]
    assert "callers (25 %)." in text, text


@pytest.mark.parametrize("more", [["--traffic", "access.log"], ["--traffic-period", "soon"], ["--identity", "a=ip"]])
def test_options_that_do_not_fit_samples_are_rejected(sampled: list[str], more: list[str]) -> None:
    assert plan(*sampled, *more)[0] == 1


@pytest.mark.parametrize("change", ["partition_by: []", "scope: billing", "methods: [POST]", "view_name: hello"])
def test_a_bound_fails_where_the_samples_are_of_others(sampled: list[str], change: str) -> None:
    path, name = Path(sampled[0]), change.partition(":")[0]
    lines = [line for line in path.read_text().splitlines() if not line.strip().startswith(f"{name}:")]
    place = next(number for number, line in enumerate(lines) if line.strip().startswith("limits:"))
    lines.insert(place, " " * (len(lines[place]) - len(lines[place].lstrip())) + change)
    path.write_text("\n".join(lines) + "\n")
    assert plan(*sampled)[0] == 2
    code, text = plan(*sampled, "--max-newly-rejected", "100%")
    assert (code, "what it applies to or counts by changes" in text) == (1, True)


def test_a_rule_under_another_name_is_the_same(sampled: list[str]) -> None:
    path = Path(sampled[0])
    path.write_text(path.read_text().replace("  pages:\n", "  pages-v2:\n    name: pages\n"))
    code, text = plan(*sampled, "--max-newly-rejected", "25%", "--delete")
    assert (code, "nothing is recorded" in text) == (2, False)


def test_a_bound_fails_where_callers_get_other_tiers_than_the_samples_have(sampled: list[str]) -> None:
    tier = Tier.objects.create(slug="pro", name="Pro")
    RuleLimit.objects.create(rule=Rule.objects.get(), tier=tier, quota=1, window_seconds=3_600)
    path = Path(sampled[0])
    text = managed("export")[1]
    path.write_text(text.replace("name: Pro\n", "name: Pro\n    default_for: anonymous\n"))
    code, text = plan(*sampled, "--max-newly-rejected", "100%")
    assert (code, "callers get other tiers, and the samples have those of then" in text) == (1, True), text
