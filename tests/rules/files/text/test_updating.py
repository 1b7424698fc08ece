"""A YAML file of which values change keeps its comments where they are, as far as the values leave room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ratelimiter.rules.files.text.updating import updated
from django_ratelimiter.rules.files.text.yaml import editor


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("quota: 10  # each", "quota: 100  # each"),
        ("quota: 10  # each", "quota: 1   # each"),  # in its column, as with lines that stand above
        ("quota: 10 # each", "quota: 100 # each"),
        ("quota: 10      # each", "quota: 100     # each"),
        ("quota: 10      # each", "quota: 100000000  # each"),
        ("quota: 10  # each\n\n  # below", "quota: 100  # each\n\n  # below"),
        ("# above\nquota: 10", "# above\nquota: 100"),
    ],
)
def test_a_changed_value_takes_no_space_from_the_comment_behind_it(before: str, after: str) -> None:
    old, new = ({"quota": int(text.split("quota: ")[1].split()[0])} for text in (before, after))
    assert updated(f"{before}\n", old, new) == f"{after}\n"


def test_comments_behind_lists_texts_and_limits_keep_their_space_as_well() -> None:
    text = """\
rules:
  # Slow.
  search:
    name: Search  # the name
    mode: "off"  # for now
    methods: [GET]  # more to come
    partition_by:
      - user  # whoever asks
    limits:
      - {tier: free, quota: 60, window_seconds: 60}  # one a second
      - quota: 5      # small
        burst: 10     # steep
        window_seconds: 60  # a minute

  # Last.
"""
    free = {"tier": "free", "quota": 60, "window_seconds": 60}
    few = {"quota": 5, "burst": 10, "window_seconds": 60}
    rule: dict[str, Any] = {"name": "Search", "mode": "off", "methods": ["GET"], "partition_by": ["user"]}
    changed = {"name": "Search of all", "mode": "enforce", "methods": ["GET", "HEAD"]}
    wanted = text
    for old, new in [
        ("name: Search ", "name: Search of all "),
        ('mode: "off"  #', 'mode: "enforce"  #'),
        ("[GET]", "[GET, HEAD]"),
        ("quota: 60,", "quota: 6000,"),
        ("quota: 5      #", "quota: 5000   #"),
    ]:
        assert old in wanted
        wanted = wanted.replace(old, new)
    found = updated(
        text,
        {"rules": {"search": {**rule, "limits": [free, few]}}},
        {"rules": {"search": {**rule, **changed, "limits": [{**free, "quota": 6000}, {**few, "quota": 5000}]}}},
    )
    assert found == wanted


#: Written as no program writes it: indented by three, brackets over several lines, quotes of both kinds.
ODD = """\
# Ours.
version: 1   # of the format
rules:
   search:      # the page
      name: 'Search'
      methods: [GET,   # reads
                HEAD,  # as well
               ]
      gating:  true
      mode: "enforce"
      match: {
        path: "/search/",  # and below
      }
      limits:
      -  quota: 5        # few
         window_seconds:   60
      - {tier: pro,  # who pays
         quota: 60, window_seconds: 60}   # one a second

# The end.
"""
LIMITS = [{"quota": 5, "window_seconds": 60}, {"tier": "pro", "quota": 60, "window_seconds": 60}]
RULE: dict[str, Any] = {"name": "Search", "methods": ["GET", "HEAD"], "mode": "enforce", "limits": LIMITS}


def changed(**values: Any) -> dict[str, Any]:
    return {"version": 1, "rules": {"search": {**RULE, **values}}}


@pytest.mark.parametrize(
    ("after", "old", "new"),
    [
        (changed(), "", ""),
        (changed(name="Suche, schnell"), "'Search'", "'Suche, schnell'"),
        (changed(name="it's"), "'Search'", "'it''s'"),
        (changed(mode="shadow"), '"enforce"', '"shadow"'),
        (changed(gating=False), "gating:  true", "gating:  false"),
        (changed(limits=[{**LIMITS[0], "quota": 5000}, LIMITS[1]]), "quota: 5        #", "quota: 5000     #"),
        (changed(limits=[LIMITS[0], {**LIMITS[1], "quota": 6}]), "quota: 60,", "quota: 6,"),
        (changed(limits=[LIMITS[0], {**LIMITS[1], "soft_quota": 6}]), "60}", "60, soft_quota: 6}"),
        (
            changed(limits=[{**LIMITS[0], "burst": 9}, LIMITS[1]]),
            "window_seconds:   60\n",
            "window_seconds:   60\n         burst: 9\n",
        ),
        (changed(cost=3), 'mode: "enforce"\n', 'mode: "enforce"\n      cost: 3\n'),
        ({**changed(), "exported_version": "3@1"}, "at\n", "at\nexported_version: 3@1\n"),
        (changed(methods=["GET"]), "[GET,   # reads\n                HEAD,  # as well\n               ]", "[GET]"),
    ],
)
def test_where_only_values_differ_nothing_else_does(after: dict[str, Any], old: str, new: str) -> None:
    assert not old or ODD.count(old) == 1
    assert updated(ODD, changed(), after) == (ODD.replace(old, new) if old else ODD)


@pytest.mark.parametrize("value", ["a, b", "a]", "{a}", "a: b", "a # b", "#", "", " ", "null", "12", "off"])
def test_a_value_in_brackets_is_quoted_if_it_must_be(value: str) -> None:
    text = "a: {name: one,  # first\n  cost: 1}\n"
    found = updated(text, {"a": {"name": "one", "cost": 1}}, {"a": {"name": value, "cost": 1}})
    assert editor().load(found) == {"a": {"name": value, "cost": 1}}
    assert "  # first\n  cost: 1}\n" in found


def test_a_field_that_goes_takes_its_line_along() -> None:
    after = {name: value for name, value in RULE.items() if name != "mode"}
    found = updated(ODD, changed(), {"version": 1, "rules": {"search": after}})
    assert found == ODD.replace('      mode: "enforce"\n', "")


@pytest.mark.parametrize("text", ["rules: {search: {name: a}}", "rules:\n  search:\n    name: a"])
def test_a_file_without_a_last_line_end_is_added_to(text: str) -> None:
    before = {"rules": {"search": {"name": "a"}}}
    after = {"rules": {"search": {"name": "a", "methods": ["GET", "HEAD"]}}}
    found = updated(text, before, after)
    assert editor().load(found) == after
    assert found.startswith(text.rstrip("}"))


def test_a_text_in_two_places_is_not_edited_in_one() -> None:
    text = "rules:\n  a: {name: &it One}\n  b: {name: *it}\n"
    before = {"rules": {"a": {"name": "One"}, "b": {"name": "One"}}}
    after = {"rules": {"a": {"name": "One"}, "b": {"name": "Two"}}}
    assert editor().load(updated(text, before, after)) == after


@given(
    st.text(max_size=20) | st.integers() | st.booleans() | st.none(),
    st.sampled_from(["'Search'", "Search", '"Search"']),
)
def test_any_value_is_written_so_that_it_is_read_again(value: str | int | bool | None, was: str) -> None:
    text = ODD.replace("'Search'", was)
    found = updated(text, changed(), changed(name=value))
    assert editor().load(found)["rules"]["search"]["name"] == value
    inline = updated(f"a: {{name: {was}, cost: 1}}\n", {"a": {"name": "Search"}}, {"a": {"name": value}})
    assert editor().load(inline)["a"] == {"name": value, "cost": 1}


def test_where_a_rule_comes_indentation_and_comments_between_brackets_are_not_kept() -> None:
    text = "rules:\n    search:\n        methods: [GET,  # reads\n            HEAD]\n        cost: 1  # each\n"
    before = {"rules": {"search": {"methods": ["GET", "HEAD"], "cost": 1}}}
    found = updated(text, before, {"rules": {**before["rules"], "other": {"cost": 2}}})
    assert [line.split() for line in found.splitlines()] == [
        ["rules:"],
        ["search:"],
        ["methods:", "[GET,", "HEAD]"],
        ["cost:", "1", "#", "each"],
        ["other:"],
        ["cost:", "2"],
    ]
    assert "\n  search:\n    methods:" in found
