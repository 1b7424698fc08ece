"""The response fields of a decision, and the response to a rejected request."""

from __future__ import annotations

from .fields import response_fields, retry_after, write_fields
from .responses import PROBLEM_JSON, add_reference, may_wait, rejection_response, words_of
from .syntax import name_of, quota_of

__all__ = [
    "PROBLEM_JSON",
    "add_reference",
    "may_wait",
    "name_of",
    "quota_of",
    "rejection_response",
    "response_fields",
    "retry_after",
    "words_of",
    "write_fields",
]
