"""What a client is told: the response fields of a decision, and the response to a refusal."""

from __future__ import annotations

from .fields import Policy, drop_fields, policy_name, ratelimit_fields, response_fields, retry_after, write_fields
from .refusals import PROBLEM_JSON, TEMPLATE, Words, problem_details, refusal, words_of

__all__ = [
    "PROBLEM_JSON",
    "TEMPLATE",
    "Policy",
    "Words",
    "drop_fields",
    "policy_name",
    "problem_details",
    "ratelimit_fields",
    "refusal",
    "response_fields",
    "retry_after",
    "words_of",
    "write_fields",
]
