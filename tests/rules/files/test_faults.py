"""A wrong file is named with line and column, and what would be right. No database, and no Redis, is asked."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.rules.files.documents import Document, LibraryMissing
from django_ratelimiter.rules.files.reading import WrongFile, load, read

RULE = "rules:\n  a:\n    limits:\n      - {quota: 5, window_seconds: 60}\n"


def faults(text: str, name: str = "r.yaml") -> list[str]:
    """The lines that say what is wrong with a file."""
    try:
        read(text, name).check_names()
    except WrongFile as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rules: [a\nb: 1", "r.yaml:2:2: Not YAML: A comma or the closing bracket is missing before this."),
        ("rules:\n  a: \x01", "r.yaml:2:6: Not YAML: special characters are not allowed."),
        ('rules:\n  a: {name: "x}\n', "r.yaml:2:13: Not YAML: The quote that begins here is not closed."),
        ("rules: [a\n\n", "r.yaml:1:8: Not YAML: A comma or the closing bracket is missing before this."),
        (
            "rules:\n  a: {}\n b: {}",
            "r.yaml:3:2: Not YAML: This line is not indented like the other lines of its group",
        ),
        (
            "rules:\n  a:\n    mode off\n    cost: 1",
            "r.yaml:4:9: Not YAML: This “:” is not expected here. Write “name: ",
        ),
        ("rules:\n- a:\n  b\n", "r.yaml:4:1: Not YAML: A field is “name: value”, with a colon and a space."),
        (
            "rules:\n  a: {name: @x}",
            "r.yaml:2:13: Not YAML: A text cannot begin with this character. Put the text in quotes.",
        ),
        (
            "rules:\n  a: *x",
            "r.yaml:2:6: Not YAML: Nothing above has this name. Write “&name” before the value that is meant.",
        ),
        ("rules: {}\n---\nrules: {}", "r.yaml:2:1: Not YAML: A rules file is one document. Leave this line out."),
        (
            'rules:\n  a: {name: "\\q"}',
            "r.yaml:2:15: Not YAML: This is not an escape in double quotes. Use single quotes.",
        ),
        ("rules:\n  a: !env {}", "r.yaml:2:6: Tags such as !env are not supported."),
        ("rules:\n  a:\n    <<: text", "r.yaml:3:9: A merge key (<<) takes a group of fields, such as *name."),
        ("rules:\n  a: {name: 007}", 'r.yaml:2:13: name: Must be a text, not 007. Put it in quotes: "007".'),
        (RULE.replace("5,", "5, tier: 007,"), "r.yaml:4:26: There is no tier “007” in this file."),
        (
            "rules:\n  a: {partition_by: ip}",
            'r.yaml:2:21: partition_by: Must be a list of texts, not “ip”. Write ["ip"].',
        ),
        (
            'rules:\n  a: {methods: "GET, PUT"}',
            'r.yaml:2:16: methods: Must be a list of texts, not “GET, PUT”. Write ["GET", "PUT"].',
        ),
        (RULE.replace("5,", "1e3,"), "r.yaml:4:17: quota: Must be a whole number, not 1e3."),
        (
            RULE.replace("60", "1E-7"),
            "r.yaml:4:36: window_seconds: Ensure that there are no more than 6 decimal places. Must "
            "be a whole number of microseconds, not 0.0000001 seconds.",
        ),
        *[
            (
                f"rules:\n  a: {{path: {path!r}, path_kind: {kind}}}",
                f"r.yaml:2:13: path: A path has no host, query, fragment or escapes such as %20. Write {right}.",
            )
            for path, kind, right in (
                ("/a/?page=1", "exact", "/a/"),
                ("/a/?", "prefix", "/a/"),
                ("/a#top", "exact", "/a"),
                ("https://shop.example/a/?b#c", "exact", "/a/"),
                ("/a%20b/", "prefix", "/a b/"),
            )
        ],
        ("", "r.yaml:1:1: Must be a rules file, not nothing."),
        ("- a", "r.yaml:1:1: Must be a rules file, not a list."),
        ("rules:\n  a: {limits: {quota: 5}}", "r.yaml:2:15: Must be a list of limits, not a group of fields."),
        ("version: 1", "r.yaml:1:1: A rules file has “rules”, “tiers” or “access”."),
        ("version: 2\nrules: {}", "r.yaml:1:10: Must be 1."),
        ("ruels: {}\nrules: {}", "r.yaml:1:1: “ruels” is not a field of a rules file. Did you mean rules?"),
        (
            "rules:\n  a: {quota: 5}",
            "r.yaml:2:7: “quota” is not a field of a rule. This field belongs in one of the “limits” of the rule.",
        ),
        ("rules:\n  a: {pth: /x/}", "r.yaml:2:7: “pth” is not a field of a rule. Did you mean path?"),
        ("rules:\n  a: {}\n  b: {}\n  a: {}", "r.yaml:4:3: “a” is here twice: also in line 2. Keep one of them."),
        ("tiers: {x: {}, x: {}}", "r.yaml:1:16: “x” is here twice: also in line 1. Keep one of them."),
        ("rules:\n  a: {mode: enfrce}", "r.yaml:2:13: mode: “enfrce” is unknown. Did you mean enforce?"),
        ("rules:\n  a: {cost: 1.5}", "r.yaml:2:13: cost: Must be a whole number, not 1.5."),
        ("rules:\n  a: {cost: true}", "r.yaml:2:13: cost: Must be a whole number, not true."),
        ("rules:\n  a: {methods: GET}", "r.yaml:2:16: methods: Must be a list of texts, not “GET”."),
        ("rules:\n  a: {methods: [GTE]}", "r.yaml:2:17: methods: “GTE” is unknown. Did you mean GET?"),
        ("rules:\n  a b: {}", "r.yaml:2:3: slug: Enter a valid “slug”"),
        (RULE.replace("5", "0"), "r.yaml:4:17: quota: Must be at least 1, not 0."),
        (RULE.replace("60", "-1"), "r.yaml:4:36: window_seconds: Must be"),
        (RULE.replace("60", ".inf"), "r.yaml:4:36: window_seconds: Must be a number, not “.inf”."),
        (RULE.replace(", window_seconds: 60", ""), "r.yaml:4:9: window_seconds: Required unless “unlimited” is set."),
        (RULE.replace("5,", "5, burst: 7,"), "r.yaml:4:27: burst: sliding_window_counter does not use this."),
        (RULE.replace("5,", "5, tier: pro,"), "r.yaml:4:26: There is no tier “pro” in this file."),
        (
            RULE + "      - {quota: 9, window_seconds: 60}\n",
            "r.yaml:5:9: This tier already has a limit that counts in the same way, in line 4. Keep one of them.",
        ),
        ("rules:\n  a: {view_name: no-such}", "r.yaml:2:18: No view has the name “no-such”."),
        (
            "rules:\n  a: {view_name: admin:indx}",
            "r.yaml:2:18: No view has the name “admin:indx”. Did you mean admin:index?",
        ),
        ("rules:\n  a: {path_kind: route, path: nowhere/}", "r.yaml:2:31: No view has the route “nowhere/”."),
        (
            "rules:\n  a: {partition_by: [usr]}",
            "r.yaml:2:22: partition_by: “usr” is not an identity of this project. Did you",
        ),
        (
            "tiers: {a: {default_for: anonymous}, b: {default_for: anonymous}}",
            "r.yaml:1:55: The tier a is already the default",
        ),
        ("access:\n  - {kind: ip}", "r.yaml:2:5: An access entry needs a “value”, or a “digest” instead of a value."),
        ("access:\n  - {value: 192.0.2.7}", "r.yaml:2:5: “kind” is missing."),
        ("access:\n  - {kind: ip, value: 192.0.2}", "r.yaml:2:23: value: Not an address or network:"),
        ("access: [{kind: ip, value: 10.0.0.1, expires_at: soon}]", "r.yaml:1:50: expires_at: Must be a date and time"),
        (
            "access: [{kind: ip, value: 10.0.0.1, expires_at: 0001-01-01T00:00:00+14:00}]",
            "r.yaml:1:50: expires_at: Must be a date and time",
        ),
        ("rules:\n  a: {cost: !!int Infinity}", "r.yaml:2:13: cost: Must be a whole number, not “Infinity”."),
        ("rules:\n  a: {cost: !!int NaN}", "r.yaml:2:13: cost: Must be a whole number, not “NaN”."),
        ("rules:\n  a: {cost: !!int 1e300000}", "r.yaml:2:13: cost: Must be a whole number, not “1e300000”."),
        (f"rules:\n  a: {{cost: {'9' * 5_000}}}", "r.yaml:2:13: cost: Must be a whole number, not “999"),
        (f"rules:\n  a: {{cost: 0x{'9' * 5_000}}}", "r.yaml:2:13: cost: Must be a whole number, not “0x999"),
        (RULE.replace("60", "1e300000"), "r.yaml:4:36: window_seconds: Must be a number, not “1e300000”."),
        (RULE.replace("60", '"1e99999999999999999999"'), "r.yaml:4:36: window_seconds: Must be a number, not “1e9"),
        ('rules:\n  a: {name: "a\\0"}', "r.yaml:2:13: A text cannot hold the character U+0000."),
        ('rules:\n  "\\ud800": {}', "r.yaml:2:3: A text cannot hold the character U+D800."),
        ("a: &a\n  b: *a", "r.yaml:1:4: This is too large or too deep for a rules file."),
    ],
)
def test_each_fault_has_a_place_and_says_what_would_be_right(text: str, fault: str) -> None:
    found = faults(text)
    assert any(line.startswith(fault) for line in found), found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            '{"rules": {"a": {mode: "off"}}}',
            "r.json:1:18: Not JSON: Expecting property name enclosed in double quotes.",
        ),
        ('{"rules":\n {"a": {}, "a": {}}}', "r.json:2:12: “a” is here twice: also in line 2. Keep one of them."),
        ('{"rules": {"a": {"cost": nil}}}', "r.json:1:26: Not JSON: Expecting value."),
        ('{"rules": {}', "r.json:1:13: Not JSON: Expecting ',' delimiter."),
        ('{"rules": {}} {}', "r.json:1:15: Not JSON: Extra data."),
        ("[" * 100_000, "r.json:1:1: This is too large or too deep for a rules file."),
        (f'{{"rules": {{"a": {{"cost": {"9" * 5_000}}}}}}}', "r.json:1:26: cost: Must be a whole number, not “999"),
        ('{"rules": {"a": {"cost": 1e99999999999999999999}}}', "r.json:1:26: cost: Must be a whole number, not “1e999"),
        ('{"rules": {"a": {"name": "\\u0000"}}}', "r.json:1:26: A text cannot hold the character U+0000."),
        ('{"rules":\n {"\\udfff": {}}}', "r.json:2:3: A text cannot hold the character U+DFFF."),
        ('{"rules": {"a": {"limits": [{"quota": 1e3, "window_seconds": 60}]}}}', "r.json:1:39: quota: Must be a whole"),
    ],
)
def test_json_has_places_too(text: str, fault: str) -> None:
    found = faults(text, "r.json")
    assert any(line.startswith(fault) for line in found), found


def test_many_references_are_no_way_to_fill_the_memory() -> None:
    bomb = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'a'}]\n" for n in range(9))
    assert faults(bomb)[0].endswith("This is too large or too deep for a rules file.")


def test_all_faults_are_found_at_once() -> None:
    text = "tiers:\n  t: {rank: high}\nrules:\n  a: {mode: on}\n  b:\n    limits:\n      - 5\n"
    assert [line.split(" ")[0] for line in faults(text)] == ["r.yaml:2:13:", "r.yaml:4:13:", "r.yaml:7:9:"]


def test_a_wrong_tier_hides_no_other_fault_of_its_rule() -> None:
    text = "rules:\n  a:\n    mode: on\n    view_name: nowhere\n    partition_by: [adress]\n    limits:\n"
    text += "      - {tier: fre, quota: many, window_seconds: 60}\n"
    found = [line.split(" ")[0] for line in faults(text)]
    assert found == [f"r.yaml:{place}:" for place in ("3:11", "4:16", "5:20", "7:16", "7:28")]


@pytest.mark.parametrize("wrong", ["path_kind: exakt", "path_knd: exact"])
def test_a_wrong_field_has_no_other_faults_in_its_wake(wrong: str) -> None:
    [fault] = faults(f"rules:\n  a: {{path: /a/, {wrong}}}")
    assert "path_kind" in fault or "exact" in fault


def test_a_wildcard_in_a_path_is_a_fault_that_says_what_is_right() -> None:
    [fault] = faults("rules:\n  a: {path: /api/*, path_kind: exact}")
    assert "choose “paths that start with it” and /api/." in fault


def test_a_file_that_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"rules:\n  caf\xe9: {}\n")
    with pytest.raises(WrongFile, match=r"r\.yaml:2:6: Not UTF-8\."):
        load(path)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(path.read_bytes())))
    with pytest.raises(WrongFile, match=r"-:2:6: Not UTF-8\."):
        load("-")


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["check", "none.yaml"], "none.yaml: No such file or directory."),
        (["check", "."], ".: Is a directory."),
        (["apply", "right.yaml", "--plan", "none.json"], "none.json: No such file or directory."),
        (["export", "--schema", "--to", "none/new.yaml"], "No such file or directory."),
        (["export", "--schema", "--to", "right.yaml"], "right.yaml exists already."),
    ],
)
def test_a_file_that_cannot_be_opened_is_named_without_a_number_of_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], answer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("right.yaml").write_text(RULE)
    with pytest.raises(CommandError) as caught:
        call_command("ratelimit", *arguments)
    assert answer in str(caught.value)
    assert "Errno" not in str(caught.value)
    assert Path("right.yaml").read_text() == RULE


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16_says_what_would_be_right(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(RULE.encode(encoding))
    with pytest.raises(WrongFile, match=r"r\.yaml:1:1: This is UTF-16\. Save the file as UTF-8\."):
        load(path)


def test_a_tab_says_what_would_be_right() -> None:
    assert faults("rules:\n\ta: {mode: off}") == ["r.yaml:2:1: A tab is not allowed here. Indent YAML with spaces."]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_ends_of_lines_have_the_same_places(end: str) -> None:
    assert faults(RULE.replace("\n", end)) == []
    wrong = "rules:\n  a:\n    mode: on\n"
    assert faults(wrong.replace("\n", end)) == faults(wrong)


@pytest.mark.parametrize("directive", ["", "%YAML 1.1\n---\n"])
def test_words_numbers_and_dates_are_what_they_look_like(directive: str) -> None:
    """Other readers of YAML take “no” for false, 010 for 8, and a date for no text."""
    file = read(
        f"{directive}rules:\n  no: {{mode: off, cost: 010, name: 2026-12-31}}\n  404: {{name: yes}}\n", "r.yaml"
    )
    found = [[rule[name] for name in ("slug", "mode", "cost", "name")] for rule in file.rules]
    assert found == [["no", "off", 10, "2026-12-31"], ["404", "shadow", 1, "yes"]]


@pytest.mark.parametrize("slug", ["007", "true", "1_000", "0x1F", "null", "2026-01-01"])
def test_the_text_of_a_slug_counts(slug: str) -> None:
    [rule] = read(RULE.replace("  a:", f"  {slug}:"), "r.yaml").rules
    assert rule["slug"] == slug
    tier = slug if slug != "null" else '"null"'  # without quotes, it is every other tier
    [rule] = read(f"tiers:\n  {slug}:\n{RULE.replace('5,', f'5, tier: {tier},')}", "r.yaml").rules
    assert rule["limits"][0]["tier"] == slug


def test_values_can_stand_in_sections_of_their_own_and_be_merged() -> None:
    """As others do with YAML, so that several rules share fields. Its own fields go before those of a merge key."""
    text = "x-usual: &usual\n  mode: enforce\n  limits: &few\n    - {quota: 5, window_seconds: 60}\n"
    text += "x-slow: &slow {<<: *usual, priority: 7, mode: off}\nx-slow-too: &slow {cost: 2}\n"
    text += "rules:\n  a:\n    <<: *usual\n    mode: shadow\n  b:\n    limits: *few\n    <<: [*slow, *usual]\n"
    found = [[rule[name] for name in ("slug", "mode", "cost", "priority")] for rule in read(text, "r.yaml").rules]
    assert found == [["a", "shadow", 1, 100], ["b", "enforce", 2, 100]]
    assert {len(rule["limits"]) for rule in read(text, "r.yaml").rules} == {1}
    assert faults(text.replace("mode: enforce", "mode: on"))[0].startswith("r.yaml:2:9: mode: “on” is unknown.")


def test_many_merge_keys_are_no_way_to_keep_a_process_busy() -> None:
    bomb = "".join(f"x-{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 10)}]}}\n" for n in range(1, 12))
    assert faults("x-0: &x0 {a: b}\n" + bomb)[0].endswith("This is too large or too deep for a rules file.")


def test_a_right_file_has_none() -> None:
    assert faults(RULE) == []
    assert faults("rules:\n  a: {mode: off}") == []
    assert faults("rules:\n  a:\n") == []
    assert read(RULE, "r.yaml").rule_set().rules[0].limits[None][0].limit.quota == 5


def test_a_rule_without_limits_is_warned_of() -> None:
    [warning] = read("rules:\n  a: {mode: enforce}", "r.yaml").warnings
    assert warning.in_words("r.yaml") == "r.yaml:2:3: This rule has no limits, so it applies to nobody yet."
    assert read(RULE, "r.yaml").warnings == []


@pytest.mark.parametrize("quota", ["-5", "0", "9" * 30])
def test_a_bound_is_told_once(quota: str) -> None:
    [fault] = faults(RULE.replace("quota: 5", f"quota: {quota}"))
    assert ". " not in fault
    assert fault.endswith(f", not {quota}.")


def test_a_scope_that_no_view_has_is_only_warned_of() -> None:
    """Any code may ask for it."""
    [warning, _] = read("rules:\n  a: {scope: uploads}", "r.yaml").warnings
    assert warning.in_words("r.yaml") == (
        "r.yaml:2:14: No view names the scope “uploads”, so this rule applies only where other code does, "
        "with limiter.check, limiter.slot or in_slot."
    )


@pytest.mark.parametrize("library", ["ruamel.yaml", "jsonschema"])
@pytest.mark.parametrize("name", ["r.yaml", "r.json"])
def test_without_the_extra_it_is_named(library: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an environment where the library was never installed: none of its modules is loaded either."""
    for module in [each for each in sys.modules if each.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(LibraryMissing, match=r'pip install "django-tiered-ratelimiter\[yaml\]"'):
        read('{"rules": {}}', name)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('a:-#"\\é\x85\u2028😀', max_size=9), inner, max_size=3)
    ),
    max_leaves=9,
)


@given(values, st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_json_is_read_as_json_is(value: Any, ascii_only: bool, indent: Any) -> None:
    """Its places come from a reader of YAML, in which some characters mean something else."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    document = Document(text, "r.json", is_json=True)
    assert (document.data, document.faults) == (value, [])
