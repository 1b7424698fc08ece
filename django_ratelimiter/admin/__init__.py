"""The admin's pages for operators."""

from .callers import tables
from .rules import admin as rule_pages
from .usage import admin as usage_pages

__all__ = ["rule_pages", "tables", "usage_pages"]
