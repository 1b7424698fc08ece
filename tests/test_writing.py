"""Commands write files, pipes that nobody reads to their end, and terminals that no text may control."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import OutputWrapper

from django_ratelimiter import limiter
from django_ratelimiter.management import output
from django_ratelimiter.management.commands.ratelimit import Command
from django_ratelimiter.management.output import Terminal, write_file
from django_ratelimiter.models import AccessEntry, Rule, RuleLimit, Tier, TierAssignment
from django_ratelimiter.rules import cache
from django_ratelimiter.rules.files.texts import read, yaml_of
from django_ratelimiter.values.terminal import on_terminal, visible

from .making import request_of
from .test_public_names import listed

PROGRAM = """
import sys
import django
django.setup()
from django_ratelimiter.management.output import quiet_pipes
with quiet_pipes(sys.stdout):
    for _ in range({lines}):
        print("x" * 100)
"""

EVIL: Final = "a\x1b[2J\x9b1m\r\n::add-mask::a\n##[group]a\u2028\u202eb"
HARMFUL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]|(?m:^\s*::)|##\[")


def test_a_text_that_cannot_be_encoded_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_file(str(file), "new" * 100_000 + "\ud800")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("rules.yaml", "old")]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    try:
        write_file(f"/dev/fd/{writes}", "new")
        assert os.read(reads, 10) == b"new"
    finally:
        os.close(reads)
        os.close(writes)


@pytest.mark.parametrize("name", ["no-such/rules.yaml", "."])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=name):
        write_file(str(tmp_path / name), "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_process_ends_quietly_and_says_by_its_exit_code_why(lines: int) -> None:
    """Also if all of it fits into the buffer, which is written at the end."""
    read, write = os.pipe()
    os.close(read)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(lines=lines)], stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert (ended.returncode, ended.stderr) == (141, b"")


class Unread(io.StringIO):
    """A pipe without a reader."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.django_db
@pytest.mark.parametrize("line", ["explain GET /x/", "caller --ip 192.0.2.7", "watch", "collect", "export", "on"])
def test_each_subcommand_does(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("ratelimit", *line.split(), stdout=Unread())
    assert ended.value.code == 141


def is_clean(text: str) -> bool:
    return HARMFUL.search(text) is None


def test_a_text_is_one_line_that_does_nothing() -> None:
    assert visible(EVIL) == r"a\u001b[2J\u009b1m\r\n::add-mask::a\n\u0023#[group]a\u2028\u202eb"
    assert visible("\N{NO-BREAK SPACE}Jos\u00e9 \U0001f600 ##1 a::b fe80::1 \\n") == (
        "\N{NO-BREAK SPACE}Jos\u00e9 \U0001f600 ##1 a::b fe80::1 \\n"
    )
    assert on_terminal(["  ::error::a", "##vso[task]", visible(EVIL)]) == "\n".join(
        [r"  \u003a:error::a", r"\u0023#vso[task]", visible(EVIL)]
    )


@pytest.fixture
def hostile(db: None) -> User:
    """A user, a tier, a rule and an entry whose texts are hostile: SQL wrote them."""
    user = User.objects.create(username=EVIL)
    with cache.editing():
        tier = Tier.objects.create(slug="pro", name=EVIL)
        rule = Rule.objects.create(slug="export", name=EVIL, description=EVIL, message=EVIL, mode="enforce")
        Rule.objects.filter(pk=rule.pk).update(partition_by=["user"])
        RuleLimit.objects.create(rule=rule, tier=tier, quota=1, window_seconds=60)
    TierAssignment.objects.create(tier=tier, user=user, reason=EVIL)
    AccessEntry.objects.create(kind="user", value=str(user.pk), action="allow", reason=EVIL)
    return user


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "GET", "/hello/", "--user", EVIL],
        ["explain", "GET", f"/{EVIL}", "--identity", f"header:X-Evil={EVIL}"],
        ["explain", "--reference", EVIL],
        ["caller", "--user", EVIL],
        ["caller", "--partition", f"header:X={EVIL}"],
        ["check", "FILE"],
        ["plan", "FILE"],
        ["apply", "FILE", "--author", EVIL],
        ["export"],
        ["export", "--format", "json"],
        ["replay", "LOG", "--no-progress"],
        ["replay", "LOG", "--format", f"({EVIL}"],
    ],
)
def test_no_command_repeats_it(hostile: User, tmp_path: Path, capsys: Any, words: list[str]) -> None:
    file, log = tmp_path / "r.yaml", tmp_path / "access.log"
    file.write_text(yaml_of({"rules": {"export": {"name": "b", "description": EVIL}, "new": {"name": EVIL}, EVIL: {}}}))
    fine = '203.0.113.9 - - [25/Oct/2026:20:00:05 +0000] "GET /hello/\x1b[2J HTTP/1.1" 200 5\n'
    log.write_text(fine + EVIL.replace("\n", "\x1b") + "\n")
    found = [str({"FILE": file, "LOG": log}.get(word, word)) for word in words]
    command = Command(io.StringIO(), io.StringIO(), no_color=True)
    with suppress(SystemExit):
        command.run_from_argv(["manage.py", "ratelimit", *found])
    outputs = [output.getvalue() for output in (command.stdout, command.stderr)]
    assert any(outputs)
    assert all(map(is_clean, outputs)), outputs


#: Arguments of each subcommand. FILE and LOG are replaced by files.
SUBCOMMANDS: Final = {
    "apply": ["FILE"], "caller": ["--ip", "192.0.2.7"], "check": ["FILE"],
    "collect": [], "explain": ["get", "/hello/"], "export": [], "forget": ["ip:192.0.2.7"], "off": [], "on": [],
    "plan": ["FILE"], "replay": ["LOG"], "watch": [], "about": [],
}  # fmt: skip


def test_the_table_has_each_subcommand() -> None:
    assert {f"command ratelimit {name}" for name in SUBCOMMANDS} == {
        name for name in listed() if name[:8] == "command "
    }


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_each_subcommand_writes_one_json_document(hostile: User, tmp_path: Path, subcommand: str) -> None:
    (tmp_path / "FILE").write_text(yaml_of({"rules": {"new": {"name": "New"}}}))
    (tmp_path / "LOG").write_text('192.0.2.9 - - [25/Oct/2026:20:00:05 +0000] "GET /hello/ HTTP/1.1" 200 5\n')
    out, words = io.StringIO(), [str(tmp_path / word) if word.isupper() else word for word in SUBCOMMANDS[subcommand]]
    command = Command(out, io.StringIO(), no_color=True)
    with suppress(SystemExit):
        command.run_from_argv(["manage.py", "ratelimit", subcommand, *words, "--json"])
    assert isinstance(json.loads(out.getvalue()), dict)
    assert is_clean(out.getvalue())


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_clock", iter((0.0, 0.9, 1.0, 1.9, 2.0)).__next__)
    screen = Screen()
    with output.Progress(Terminal(OutputWrapper(screen))) as progress:
        for share in (0.1, 0.0, 0.2, 0.5):
            progress(lambda share=share: (share, f"{share:.0%}\x1b[2J"))
    first, second, cleared, rest = screen.getvalue().split("\r")
    assert first.rstrip() == r"0%\u001b[2J"
    assert second.rstrip() == r"[##########..........] 50%\u001b[2J"
    assert (cleared.strip(), rest) == ("", "")


@pytest.mark.django_db(transaction=True)
def test_no_record_of_a_rule_has_it(hostile: User, caplog: pytest.LogCaptureFixture) -> None:
    with cache.editing():
        Rule.objects.update(slug=EVIL, partition_by=[])
        RuleLimit.objects.update(tier=None)
    with caplog.at_level(logging.INFO, "django_ratelimiter"):
        for _ in range(2):
            limiter.check(request_of(User(pk=424242), "/hello/"))
    assert "is not in force" in caplog.text
    assert all(is_clean(record.getMessage()) for record in caplog.records)
    found = [message for message in run_checks() if message.id == "django_ratelimiter.W006"]
    assert found
    assert all(is_clean(f"{message.msg} {message.hint}") for message in found)


@pytest.mark.parametrize(
    ("model", "name"),
    [(Rule, "name"), (Rule, "message"), (Rule, "path"), (Rule, "scope"), (Rule, "view_name"), (Tier, "name"),
     (TierAssignment, "reason"), (AccessEntry, "reason"), (AccessEntry, "value")],
)  # fmt: skip
@pytest.mark.parametrize("text", ["a\x1b", "a\nb", "a\x9b", "a\u202e"])
def test_the_models_reject_it(model: Any, name: str, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model(**{name: text}).full_clean(validate_constraints=False)
    assert "Must be one line, without control characters." in caught.value.message_dict[name]
    with pytest.raises(ValidationError) as caught:
        model(**{name: "José ##1"}).full_clean(validate_constraints=False)
    assert "one line" not in str(caught.value)


def test_an_export_of_such_a_text_is_read_back() -> None:
    description = "a ##[b]\n::c\nd\x1b\x9b"
    text = on_terminal(yaml_of({"rules": {"a": {"description": description}}}).split("\n"))
    assert is_clean(text)
    assert read(text, "r.yaml").rules[0]["description"] == description
