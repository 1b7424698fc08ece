"""What the reference says of each algorithm, read from the registry."""

from __future__ import annotations

from dataclasses import fields

from django_ratelimiter.engine import Algorithm
from django_ratelimiter.engine.registry import Traits

#: These are told apart from the others.
_TOLD = ("options", "label", "short")


def lines() -> list[str]:
    """Return a list of all algorithms as reStructuredText."""
    return [f"- **{algorithm}**: {in_words(algorithm)}" for algorithm in Algorithm]


def in_words(algorithm: Algorithm) -> str:
    """Return how the admin offers an algorithm, its options, and its other traits."""
    traits, usual = algorithm.traits, Traits()
    values = {field.name: getattr(traits, field.name) for field in fields(Traits) if field.name not in _TOLD}
    unusual = {name: value for name, value in values.items() if value != getattr(usual, name)}
    named = [f"`{name}`" if value is True else f"`{name}={value!r}`" for name, value in unusual.items()]
    label = traits.label.partition(": ")[2] or traits.label
    sentences = [
        f"{label}." if label else "",
        f"Options: {', '.join(f'`{option}`' for option in traits.options)}." if traits.options else "",
        f"Traits: {', '.join(named)}." if named else "",
    ]
    return " ".join(filter(None, sentences))
