"""The names of django-ratelimit's module `core`, for code that changes only the name of the package."""

from __future__ import annotations

from .decorators import aget_usage, ais_ratelimited, get_usage, is_ratelimited

__all__ = ["aget_usage", "ais_ratelimited", "get_usage", "is_ratelimited"]
