"""Code asks algorithms for their traits: none but the registry and the algorithms themselves name one.

The admin's presets are rules that somebody has thought out, and name the algorithm as an operator does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_ratelimiter
from django_ratelimiter.engine import Algorithm, Limit
from django_ratelimiter.engine.algorithms import STEPS

PACKAGE = Path(django_ratelimiter.__file__).parent
REGISTRY = PACKAGE / "engine/registry.py"
SOURCES = [
    path
    for path in PACKAGE.rglob("*.py")
    if path not in (REGISTRY, PACKAGE / "admin/rules/presets.py")
    and path.parent not in (PACKAGE / "engine/algorithms", PACKAGE / "migrations")
]

#: What an algorithm is named by: in code, and as a text.
NAMES = {algorithm.name for algorithm in Algorithm}
VALUES = {str(algorithm) for algorithm in Algorithm}


def named(tree: ast.AST) -> Iterator[ast.AST]:
    """The places that name an algorithm."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield node
        if isinstance(node, ast.Constant) and node.value in VALUES:
            yield node


def test_nobody_else_names_an_algorithm() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"  # type: ignore[attr-defined]
        for path in SOURCES
        for node in named(ast.parse(path.read_text("utf-8")))
    ]
    assert len(SOURCES) > 100
    assert [*named(ast.parse("limit.algorithm in ('gcra', Algorithm.GCRA)"))][1:], "it would be found"
    assert found == [], "Ask `limit.traits`; a new trait is a field of `Traits` in engine/registry.py."


def test_letters_and_numbers_are_each_ones_own() -> None:
    assert len({algorithm.letter for algorithm in Algorithm}) == len(Algorithm)
    assert [algorithm.number for algorithm in Algorithm] == list(range(len(Algorithm)))


@pytest.mark.parametrize("algorithm", Algorithm)
def test_traits_agree_with_each_other_and_are_read_once(algorithm: Algorithm) -> None:
    limit = Limit(5, 60, algorithm)
    traits = limit.traits
    assert traits is algorithm.traits
    assert {"traits", "terms"} <= vars(limit).keys(), "a plain attribute from then on"
    assert not (traits.fetches and (traits.holds_leases or "max_delay" in traits.options)), "units are spent later"
    assert traits.label
    assert traits.short or traits.holds_leases


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("cost", [1, 5])
def test_sentences_have_all_their_values(algorithm: Algorithm, cost: int) -> None:
    common = dict.fromkeys(("who", "quota", "size", "window", "pace"), "")
    told = [text % (common | dict(values)) for text, values in STEPS[algorithm].describe(Limit(5, 60, algorithm), cost)]
    assert told
    assert all(told)
