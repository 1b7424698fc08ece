"""The operators' pages."""

from . import access, rules, tiers, usage

__all__ = ["access", "rules", "tiers", "usage"]
