"""The admin's pages for operators."""

from .callers import access, tiers
from .rules import admin as rule_pages
from .usage import admin as usage_pages

__all__ = ["access", "rule_pages", "tiers", "usage_pages"]
