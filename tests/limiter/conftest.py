"""The request path is tested with the rules, people and clock of the doors."""

from tests.doors.conftest import clock, make_rule, people, way

__all__ = ["clock", "make_rule", "people", "way"]
