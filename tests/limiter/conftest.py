"""The request path is tested with the rules, people and clock of the entry points."""

from tests.entry_points.conftest import clock, make_rule, people

__all__ = ["clock", "make_rule", "people"]
