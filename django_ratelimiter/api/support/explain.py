"""For staff: why a request is allowed or rejected. It is POST, so that no key is in a URL."""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers
from rest_framework.request import Request

from ...inspection.answer import explain
from ...inspection.asking import asked
from ...inspection.explanation import Explanation
from ...inspection.question import MAX_LENGTHS, Question
from ...inspection.report import texts_of
from ...values.bounds import MAX_TEXT
from ..permissions import MayExplain
from .problems import ProblemView, StrictSerializer

_TEXTS: Final = texts_of(Question)


class RateLimitQuestionSerializer(StrictSerializer):
    """A request, and its caller; a path, a view or a curl command is needed."""

    curl = serializers.CharField(default="", allow_blank=True, max_length=MAX_TEXT, help_text="A curl command.")
    reference = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=MAX_TEXT,
        help_text="The reference of a rejection, or a rejected response or a line of the log.",
    )
    ip = serializers.IPAddressField(default="", allow_blank=True, help_text=_TEXTS["ip"])
    headers = serializers.DictField(child=serializers.CharField(allow_blank=True), default=dict)
    identities = serializers.DictField(child=serializers.CharField(), default=dict, help_text=_TEXTS["identities"])
    body = serializers.CharField(default="", allow_blank=True, trim_whitespace=False, help_text=_TEXTS["body"])
    status = serializers.IntegerField(default=200, min_value=100, max_value=599, help_text=_TEXTS["status"])

    def get_fields(self) -> dict[str, Any]:
        """Add the short texts of a question."""
        texts = {
            name: serializers.CharField(
                default="GET" if name == "method" else "", allow_blank=True, max_length=length, help_text=_TEXTS[name]
            )
            for name, length in MAX_LENGTHS.items()
        }
        return {**texts, **super().get_fields()}


class ExplainView(ProblemView):
    """What the limiter would decide for a request now, and why: each rule that applies, and why the others do not.

    Nothing is charged, counted, logged or stored.
    """

    serializer_class = RateLimitQuestionSerializer
    permission_classes = (MayExplain,)
    throttle_scope = "ratelimit-explain"
    answers = Explanation

    def answer(self, request: Request, fields: dict[str, Any]) -> Explanation:
        headers, curl, reference = tuple(fields.pop("headers").items()), fields.pop("curl"), fields.pop("reference")
        question, logged = asked(Question(headers=headers, **fields), curl, reference, request.user)
        return explain(question, request.user, logged)
