"""Pagination of lists, by DRF's own classes."""

from __future__ import annotations

from typing import Any, Final

from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination, PageNumberPagination
from rest_framework.request import Request

PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1_000


class Pages(PageNumberPagination):
    """Numbered pages, for short lists."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE
    last_page_strings = ()


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
