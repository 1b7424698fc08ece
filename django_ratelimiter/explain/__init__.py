"""Why the limiter allows or rejects a request: `explain(Question(...))`. Nothing is charged."""

from __future__ import annotations

from .answer import explain
from .explanation import Explanation
from .question import Question, QuestionError

__all__ = ["Explanation", "Question", "QuestionError", "explain"]
