"""The operators' pages."""

from . import rules, tiers, usage

__all__ = ["rules", "tiers", "usage"]
