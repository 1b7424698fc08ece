"""The admin's pages for operators."""

from .callers import tables
from .callers.tables import CustomerAdminMixin
from .rules import admin as rule_pages
from .usage import admin as usage_pages

__all__ = ["CustomerAdminMixin", "rule_pages", "tables", "usage_pages"]
