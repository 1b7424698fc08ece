"""Pagination of lists, by DRF's own classes."""

from __future__ import annotations

from typing import Any, Final

from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination, PageNumberPagination
from rest_framework.request import Request

PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1_000

#: Query parameters for pages. Without this check DRF would ignore an invalid size.
RANGES: Final = {"page": {"minimum": 1}, "page_size": {"minimum": 1, "maximum": MAX_PAGE_SIZE}}


class Pages(PageNumberPagination):
    """Numbered pages, for short lists."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE
    last_page_strings = ()

    def get_schema_operation_parameters(self, view: Any) -> list[Any]:
        return _with_ranges(super().get_schema_operation_parameters(view))


class BucketPages(CursorPagination):
    """Pages of usage buckets; each page begins at the end of the previous one, however many there are."""

    ordering = ("start", "rule_slug", "tier_slug")
    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE

    def decode_cursor(self, request: Request) -> Any:
        """DRF passes any cursor to the database; return 404, as for other invalid cursors, if it is not a time."""
        cursor = super().decode_cursor(request)
        if cursor is not None and cursor.position is not None:
            try:
                moment = parse_datetime(str(cursor.position))
            except ValueError:
                moment = None
            if moment is None or not 1970 <= moment.year < 9999:
                raise NotFound(self.invalid_cursor_message)
        return cursor

    def get_schema_operation_parameters(self, view: Any) -> list[Any]:
        return _with_ranges(super().get_schema_operation_parameters(view))


def _with_ranges(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        parameter["schema"] |= RANGES.get(parameter["name"], {})
    return parameters
