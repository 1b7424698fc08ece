"""The operators' pages."""

from .callers import access, tiers
from .rules import admin as rules
from .usage import admin as usage

__all__ = ["access", "rules", "tiers", "usage"]
