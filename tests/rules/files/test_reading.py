"""Rules files as people write them: each is applied, and then planned without a change, or names all its errors."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils.text import slugify

from django_ratelimiter.models import AccessEntry
from django_ratelimiter.rules.files.planning import apply_file, plan_file
from django_ratelimiter.rules.files.rows import WrongFile
from django_ratelimiter.rules.files.texts import LibraryMissing, load, read
from django_ratelimiter.values.bounds import MAX_LISTED

LIMIT = "      - {quota: 5, window_seconds: 60}\n"
RULE = f"rules:\n  a:\n    limits:\n{LIMIT}"
ACCESS = "access:\n  - {kind: ip, value: 192.0.2.7, expires_at: %s}\n"
BOMB = "".join(f"x-{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'a'}]\n" for n in range(9))
MERGE_BOMB = "x-0: &x0 {a: b}\n" + "".join(
    f"x-{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)


def fields(text: str) -> str:
    return f"rules:\n  a: {{{text}}}\n"


def limit(text: str) -> str:
    return f"tiers: {{free: {{}}}}\nrules:\n  a:\n    limits:\n      - {{{text}}}\n"


RIGHT = [
    RULE,
    f"version: 1\n{RULE}",
    f"version: 2\n{RULE}# end: 1 rule\n",
    f"\ufeff{RULE}",
    RULE.replace("\n", "\r\n"),
    f"version: 2\n{RULE}# end: 1 rule\n".replace("\n", "\r\n"),
    RULE.replace("\n", "\r"),
    f"---\n{RULE}...\n",
    f"# Limits of the shop.\n\n{RULE}# more later\n",
    "rules:\n",
    "tiers:\nrules:\naccess:\n",
    "tiers:\n  free:\n  pro: {rank: 2, name: Pro}\n",
    fields("mode: off, name: yes, description: no"),
    fields("name: 2026-12-31, cost: 010"),
    fields("cost: 1_000, priority: -5"),
    fields("cost: 0x10, mode: 'enforce'"),
    fields("path: /api/, path_kind: prefix, methods: [GET, POST], partition_by: [user, 'header:X-Org']"),
    fields('path: "/größe/", path_kind: exact, name: Größe'),
    fields("path: /items/<int:pk>/, path_kind: exact"),
    fields("sync_interval_ms: null, owner: admin"),
    "rules:\n  a:\n    description: |\n      Two\n      lines: here\n",
    "rules:\n  a:\n    description: >-\n      Two\n      lines\n",
    'rules:\n  "404": {}\n  "true": {}\n  no: {}\n  2026-01-01: {}\n',
    limit("quota: 5, window_seconds: 0.25"),
    limit("quota: 5, window_seconds: 1e2, tier: free"),
    limit("quota: 5, window_seconds: 60, tier: ~, algorithm: token_bucket, burst: 7"),
    limit("quota: 5, calendar: day, timezone: UTC, algorithm: fixed_window"),
    limit("unlimited: true"),
    f"x-few: &few\n{LIMIT}rules:\n  a: {{limits: *few}}\n  b: {{limits: *few}}\n",
    f"x-usual: &usual\n  mode: enforce\n  limits:\n{LIMIT}rules:\n  a:\n    <<: *usual\n    mode: shadow\n",
    f"rules:\n  a: &one\n    name: One\n    limits:\n{LIMIT}  b: {{<<: [*one, *one], name: Two}}\n",
    "x-a: &a 1\nx-b: &a 2\nrules: {a: {cost: *a}}\n",
    ACCESS % "2030-01-02",
    ACCESS % "2030-01-02T03:04:05+02:00",
    ACCESS % "'2030-01-02 03:04'",
    "access: [{kind: ip, value: 10.0.0.7/8, action: allow, reason: ours}]\n",
    '{"rules": {"a": {"limits": [{"quota": 5, "window_seconds": 60}]}}}',
    '{"version": 2, "tiers": {"t": {"rank": 1}}}\n',
]

WRONG = [
    ("", "A rules file has “rules”, “tiers” or “access”, not null."),
    ("# nothing yet\n", "A rules file has “rules”, “tiers” or “access”, not null."),
    ("version: 1\n", "A rules file has “rules”, “tiers” or “access”."),
    ("- a\n- b\n", "A rules file has “rules”, “tiers” or “access”, not a list."),
    ("ruls: {}\n", "ruls: not a section"),
    ("version: 3\nrules: {}\n", "version: 1 or 2, not 3"),
    ("exported_version: 12\nrules: {}\n", "exported_version: as “export” writes it"),
    (RULE.rstrip(), "The last line has no line break, so the end of the file may be missing."),
    (
        f"version: 2\n{RULE}",
        "The end may be missing: with “version: 2”, the last line says how many rules there are.",
    ),
    (f"version: 2\n{RULE}# end: 1 rule\ntiers: {{}}\n", "The end may be missing"),
    ("rules: [a\nb: 1\n", "Not YAML, in line 2, column 2: "),
    ("rules:\n\ta: {}\n", "Not YAML, in line 2, column 1: "),
    ("rules:\n  a: \x01\n", "special characters are not allowed"),
    ("rules: {}\n---\nrules: {}\n", "Not YAML, in line 2, column 1: expected a single document"),
    ("rules:\n  a: *x\n", "found undefined alias 'x'"),
    ("rules:\n  a: !env {}\n", "could not determine a constructor for the tag '!env'"),
    ("rules:\n  a: {<<: text}\n", "expected a mapping or list of mappings for merging"),
    ("rules:\n  a: {}\n  b: {}\n  a: {mode: off}\n", 'found duplicate key "a".'),
    ("rules: {a: {cost: 1, cost: 2}}\n", 'found duplicate key "cost".'),
    ("rules:\n  ? {a: b}\n  : {}\n", "found unhashable key"),
    ("%YAML 1.7\n---\nrules: {}\n", "Not YAML: version minor part"),
    (fields("cost: !!int Infinity"), "Not YAML: invalid literal"),
    (fields(f"cost: {'9' * 5_000}"), "Not YAML: Exceeds the limit"),
    (f"{BOMB}rules: {{}}\n", "Not YAML: this is too large or too deep for a rules file."),
    (f"{MERGE_BOMB}rules: {{}}\n", "Not YAML: this is too large or too deep for a rules file."),
    ("rules: &a\n  a: *a\n", "Not YAML: this is too large or too deep for a rules file."),
    (f"rules: {'[' * 60}{']' * 60}\n", "Not YAML: this is too large or too deep for a rules file."),
    (f"rules: {'[' * 1_000}\n", "Not YAML: maximum recursion depth exceeded"),
    ("rules: [a]\n", "rules: a group such as “name: value”, not a list"),
    ("rules:\n  a: [1]\n", "rules.a: a group such as “name: value”, not a list"),
    ("rules:\n  404: {}\n", "rules.404: a name in quotes"),
    ("rules:\n  ? [a, b]\n  : {}\n", "a name in quotes"),
    ("rules:\n  größe: {}\n", "rules.größe.slug: Enter a valid “slug”"),
    (fields("name: 007"), "rules.a.name: a text in quotes, not 7"),
    ("rules:\n  a:\n    path:\n", "rules.a.path: a text in quotes, not null"),
    (fields("name: !!binary aGk="), "rules.a.name: a text in quotes, not this"),
    (fields('name: "a\\0"'), "rules.a.name: a text without the character U+0000"),
    (fields('description: "\\ud800"'), "rules.a.description: a text without the character U+D800"),
    (fields('partition_by: ["header:\\0"]'), "rules.a.partition_by: "),
    (fields("mode: enfrce"), 'rules.a.mode: one of off, shadow, enforce, not "enfrce"'),
    ("%YAML 1.1\n---\nrules: {a: {mode: off}}\n", "rules.a.mode: one of off, shadow, enforce, not false"),
    (fields("cost: true"), "rules.a.cost: a whole number from 1, not true"),
    (fields('cost: "5"'), 'rules.a.cost: a whole number from 1, not "5"'),
    (fields("cost: -1"), "rules.a.cost: a whole number from 1, not -1"),
    (fields(f"cost: {10**30}"), f"rules.a.cost: a whole number up to 2147483647, not {10**30}"),
    (fields(f"cost: 0x{'f' * 5_000}"), "rules.a.cost: a whole number up to 2147483647, not a number of more than 60"),
    (fields("count_refusals: yes"), 'rules.a.count_refusals: true or false, not "yes"'),
    (fields("methods: GET"), 'rules.a.methods: a list of texts in brackets, not "GET"'),
    (fields("partition_by: [{}]"), "rules.a.partition_by: a list of texts in brackets, not a list"),
    (fields("partition_by: [usr]"), 'rules.a.partition_by[0]: "usr" is not an identity of this project'),
    (fields("view_name: no-such"), 'rules.a.view_name: No view has the name "no-such".'),
    (fields("path_kind: route, path: nowhere/"), 'rules.a.path: No view has the route "nowhere/".'),
    (fields("path: /a/?page=1, path_kind: exact"), "rules.a.path: A path has no host, query"),
    (fields("cots: 5"), "rules.a.cots: not a field; it has name, mode, "),
    (fields("quota: 5"), "rules.a.quota: not a field"),
    (fields("limits: {quota: 5}"), "rules.a.limits: a list, not a group"),
    (fields("limits: [5]"), "rules.a.limits[0]: a group such as “name: value”, not 5"),
    (f"{RULE}      - {{quota: ten}}\n", 'rules.a.limits[1].quota: a whole number from 1, not "ten"'),
    (f"{RULE}{LIMIT}", "rules.a.limits[1]: This tier already has a limit that counts in the same way. (limits[0])"),
    (f"rules:\n  a:\n    limits:\n{LIMIT * 101}", "rules.a.limits: at most 100 limits"),
    (limit("quota: 1e3, window_seconds: 60"), "rules.a.limits[0].quota: a whole number from 1, not 1000.0"),
    (limit("quota: 5"), "rules.a.limits[0].window_seconds: Required unless “unlimited” is set."),
    (limit("quota: 5, window_seconds: .nan"), "rules.a.limits[0].window_seconds: a number of seconds, not NaN"),
    (limit('quota: 5, window_seconds: "60"'), 'rules.a.limits[0].window_seconds: a number of seconds, not "60"'),
    (limit("quota: 5, window_seconds: 60, burst: 7"), "rules.a.limits[0].burst: sliding_window_counter does not use"),
    (limit("quota: 5, window_seconds: 60, tier: pro"), 'rules.a.limits[0].tier: a tier of this file: free; not "pro"'),
    (
        limit("quota: 5, window_seconds: 60, tier: [free]"),
        "rules.a.limits[0].tier: a tier of this file: free; not a",
    ),
    (limit("quota: 5, window_seconds: 60, generation: 1"), "rules.a.limits[0].generation: not a field"),
    (limit("sync_interval_ms: 9"), "rules.a.limits[0].sync_interval_ms: not a field"),
    ("tiers:\n  t: {rank: high}\n", 'tiers.t.rank: a whole number from -2147483648, not "high"'),
    (
        "tiers: {a: {default_for: anonymous}, b: {default_for: anonymous}}\n",
        "tiers.b.default_for: the tier a is",
    ),
    ("access: {kind: ip}\n", "access: a list, not a group"),
    ("access:\n  - {kind: ip}\n", "access[0].value: This field cannot be blank."),
    ("access:\n  - {kind: ip, value: 192.0.2}\n", "access[0].value: Not an address or network"),
    ("access:\n  - {kind: ip, digest: abc}\n", "access[0].digest: not a field; it has action, kind, value"),
    (
        "access: [{kind: ip, value: 10.0.0.7}, {kind: ip, value: 10.0.0.7}]\n",
        "access[1]: this caller has an",
    ),
    (ACCESS % "soon", 'access[0].expires_at: a date and time such as 2026-12-31T23:59:59+00:00, not "soon"'),
    (ACCESS % "0001-01-01T00:00:00+14:00", "access[0].expires_at: a date and time"),
    ('{"rules": {"a": {mode: "off"}}}', "Not JSON: "),
    ('{"rules": {"a": {}, "a": {}}}', "rules.a: a group such as “name: value”, not two values"),
    ('{"rules": {"a": {"limits": [{"quota": 5, "quota": 6}]}}}', "rules.a.limits[0].quota: a whole number from 1"),
    ('{"rules": {"a": {"name": "A", "name": "B", "cost": 0}}}', "rules.a.name: a text in quotes, not two values"),
    ("[" * 100_000, "Not JSON: "),
    ('{"rules": {"a": {"cost": NaN}}}', "rules.a.cost: a whole number from 1, not NaN"),
    ('{"rules": {"\\ud800": {}}}', "rules.\\ud800.slug: Enter a valid “slug”"),
]


def name_of(shape: Any) -> str:
    text = shape if isinstance(shape, str) else shape[1]
    return slugify(text[:60]) or "empty"


def faults(text: str, name: str = "r") -> list[str]:
    """Return the lines about a text that is not a rules file of this project; none = it is one."""
    try:
        read(text, name).check_names()
    except WrongFile as error:
        return str(error).splitlines()
    return []


@pytest.mark.django_db
@pytest.mark.parametrize("text", RIGHT, ids=name_of)
def test_accepted_file_is_applied_and_then_planned_without_a_change(text: str) -> None:
    file = read(text, "r")
    apply_file(file)
    assert plan_file(read(text, "r")).is_empty
    assert not plan_file(read(text, "r"), delete=True).changes


@pytest.mark.parametrize("shape", WRONG, ids=name_of)
def test_error_has_the_path_of_its_value_and_says_what_would_be_right(shape: tuple[str, str]) -> None:
    text, fault = shape
    found = faults(text)
    start = "" if fault.startswith((".", "no ", "a name", "found", "could", "expected", "special")) else "r: "
    assert any(line.startswith(start) and fault in line for line in found), found


def test_errors_are_found_all_at_once() -> None:
    text = "tiers:\n  t: {rank: high}\nrules:\n  a:\n    mode: on\n    view_name: nowhere\n    partition_by: [adress]\n"
    text += "    limits:\n      - {tier: fre, quota: many, window_seconds: 60}\n"
    places = ("tiers.t.rank", "a.mode", "a.limits[0].tier", "a.limits[0].quota", "a.view_name", "a.partition_by[0]")
    assert [line.split(": ")[1] for line in faults(text)] == [
        place if place.startswith("tiers") else f"rules.{place}" for place in places
    ]


@pytest.mark.parametrize("wrong", ["path_kind: exakt", "path_knd: exact"])
def test_wrong_field_has_no_other_errors_in_its_wake(wrong: str) -> None:
    [fault] = faults(fields(f"path: /a/, {wrong}"))
    assert wrong.partition(":")[0] in fault


def test_merged_fields_come_after_those_of_the_rule() -> None:
    text = "x-usual: &usual {mode: enforce, cost: 3}\nx-slow: &slow {<<: *usual, priority: 7, mode: off}\n"
    text += "rules:\n  a:\n    <<: *usual\n    mode: shadow\n  b:\n    <<: [*slow, *usual]\n"
    found = [[rule[name] for name in ("slug", "mode", "cost", "priority")] for rule in read(text, "r").rules]
    assert found == [["a", "shadow", 3, 100], ["b", "off", 3, 7]]


def test_date_of_an_entry_includes_that_day() -> None:
    [row] = read(ACCESS % "2030-01-02", "r").access
    assert isinstance(row, AccessEntry)
    assert f"{row.expires_at:%d}" == "03"


@pytest.mark.django_db
def test_last_line_with_another_number_is_warned_of_and_nothing_is_deleted() -> None:
    file = read(f"version: 2\n{RULE}# end: 6 rules\n", "r")
    [warning] = file.warnings
    assert warning == "The last line is “# end: 6 rules”, but the number of rules is 1."
    assert plan_file(file).changes
    with pytest.raises(WrongFile, match="but the number of rules is 1"):
        plan_file(file, delete=True)


def test_limits_without_effect_and_unknown_scope_are_warned_of() -> None:
    """A scope may be right: any code can name it."""
    found = read(fields("scope: uploads"), "r").warnings
    assert found[0].startswith("rules.a.scope: No view names the scope “uploads”, so this rule applies only where")
    assert found[1] == "rules.a: This rule has no limits, so it applies to nobody yet."
    assert read(RULE, "r").warnings == []
    [warning] = read(f"{RULE}      - {{unlimited: true}}\n", "r").warnings
    assert warning == "rules.a.limits[1]: The tier is unlimited here, so its other limits have no effect."


def test_errors_and_warnings_are_listed_up_to_a_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("rules:\n" + "".join(f"  r{number}: {{}}\n" for number in range(150)))
    call_command("ratelimit", "check", str(path))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_LISTED + 1
    assert lines[-1] == "Only the first 100 of 150 are listed."
    found = faults(path.read_text().replace("{}", f"{{cost: {'x' * 9_000}}}"))
    assert (len(found), found[-1]) == (MAX_LISTED + 1, lines[-1])
    assert max(map(len, found)) < 600


@pytest.mark.parametrize("data", [RULE.encode(each) for each in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")])
def test_file_in_utf_16_is_wrong(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(data)
    with pytest.raises(WrongFile, match=r"Not UTF-8|Not YAML"):
        load(path)


def test_file_that_is_not_utf_8_is_wrong_from_standard_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(b"rules:\n  caf\xe9: {}\n")))
    with pytest.raises(WrongFile, match=r"-: Not UTF-8, in line 2\."):
        load("-")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["check", "none.yaml"], "none.yaml: No such file or directory."),
        (["check", "."], ".: Is a directory."),
        (["apply", "right.yaml", "--plan", "none.json"], "none.json: No such file or directory."),
    ],
)
def test_file_that_cannot_be_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], answer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.yaml").write_text(RULE)
    with pytest.raises(CommandError) as caught:
        call_command("ratelimit", *arguments)
    assert answer in str(caught.value)
    assert "Errno" not in str(caught.value)


def test_without_the_extra_it_is_named_and_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment where the library was never installed: none of its modules is loaded either."""
    for module in [each for each in sys.modules if each.startswith("ruamel.yaml.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ruamel.yaml", None)
    with pytest.raises(LibraryMissing, match=r'pip install "django-tiered-ratelimiter\[yaml\]"'):
        read(RULE, "r.yaml")
    assert read(json.dumps({"rules": {"a": None}}), "r.json").rules
