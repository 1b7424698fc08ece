"""The operators' pages."""

from . import rules, tiers

__all__ = ["rules", "tiers"]
