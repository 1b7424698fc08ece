"""The response fields of a decision, and the response to a rejected request."""

from __future__ import annotations

from .fields import response_fields, retry_after
from .responses import rejection_response, words_of

__all__ = ["rejection_response", "response_fields", "retry_after", "words_of"]
