"""The response fields of a decision, and the response to a rejected request."""

from __future__ import annotations

from .fields import response_fields, retry_after, write_fields
from .policies import Quota, name_of, quota_of
from .responses import PROBLEM_JSON, TEMPLATE, RefusalText, add_reference, may_wait, refusal, status_of, words_of

__all__ = [
    "PROBLEM_JSON",
    "TEMPLATE",
    "Quota",
    "RefusalText",
    "add_reference",
    "may_wait",
    "name_of",
    "quota_of",
    "refusal",
    "response_fields",
    "retry_after",
    "status_of",
    "words_of",
    "write_fields",
]
