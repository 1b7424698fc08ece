"""Why the limiter allows or rejects a request: `explain(Question(...))`. Nothing is charged."""

from __future__ import annotations

from .inspection.explanation import Explanation, explain
from .inspection.question import Question, QuestionError

__all__ = ["Explanation", "Question", "QuestionError", "explain"]
