"""What the lists of all our pages have in common."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.http import HttpRequest


class NulSafeAdmin(admin.ModelAdmin):
    """An admin whose list answers a NUL byte in its address as any filter that makes no sense: by the whole list.

    PostgreSQL takes no such text, and would say so only while the page is rendered.
    """

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        if any("\0" in f"{name}{value}" for name, values in request.GET.lists() for value in values):
            raise IncorrectLookupParameters
        return super().get_changelist_instance(request)
