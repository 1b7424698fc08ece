"""A YAML file of which values change keeps its comments where they are, as far as the values leave room."""

from __future__ import annotations

from typing import Any

import pytest

from django_ratelimiter.rules.files.text.updating import updated


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


def test_only_indentation_and_comments_between_brackets_are_not_kept() -> None:
    text = "rules:\n    search:\n        methods: [GET,  # reads\n            HEAD]\n        cost: 1  # each\n"
    document = {"rules": {"search": {"methods": ["GET", "HEAD"], "cost": 1}}}
    found = updated(text, document, document)
    assert [line.split() for line in found.splitlines()] == [
        ["rules:"],
        ["search:"],
        ["methods:", "[GET,", "HEAD]"],
        ["cost:", "1", "#", "each"],
    ]
    assert "\n  search:\n    methods:" in found
