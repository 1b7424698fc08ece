"""For staff: why a request is allowed or rejected. It is POST, so that no key is in a URL."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from ...inspection.answer import explain
from ...inspection.curl import with_curl
from ...inspection.explanation import CallerHidden, Explanation
from ...inspection.question import Question, QuestionError
from ...inspection.references import question_about
from ...inspection.report import encoded
from ...throttling import RuleThrottle
from ...values.bounds import MAX_TEXT
from ..permissions import MayExplain
from .callers import PRIVATE
from .problems import ProblemView, StrictSerializer


class RateLimitQuestionSerializer(StrictSerializer):
    """A request, and its caller; a path, a view or a curl command is needed."""

    method = serializers.CharField(default="GET", max_length=20)
    path = serializers.CharField(
        default="", allow_blank=True, max_length=4_000, help_text="A path, or a URL of this site."
    )
    view = serializers.CharField(
        default="", allow_blank=True, max_length=200, help_text="The name of a view, instead of a path."
    )
    curl = serializers.CharField(default="", allow_blank=True, max_length=MAX_TEXT, help_text="A curl command.")
    reference = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=MAX_TEXT,
        help_text="The reference of a rejection, or a rejected response or a line of the log.",
    )
    scope = serializers.CharField(
        default="", allow_blank=True, max_length=100, help_text="A scope that your code asks for."
    )
    user = serializers.CharField(default="", allow_blank=True, max_length=200, help_text="Login name or primary key.")
    api_key = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=300,
        help_text="An API key as callers send it, or the hash of a known key.",
    )
    session = serializers.CharField(default="", allow_blank=True, max_length=100, help_text="Its key.")
    ip = serializers.IPAddressField(default="", allow_blank=True, help_text="The IP address that connects to the site.")
    headers = serializers.DictField(child=serializers.CharField(allow_blank=True), default=dict)
    identities = serializers.DictField(
        child=serializers.CharField(), default=dict, help_text="Values to count by, such as field:email."
    )
    body = serializers.CharField(default="", allow_blank=True, trim_whitespace=False)
    gateway = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=200,
        help_text="The route of a view that gateways ask, such as /gateway/: for a request to another server.",
    )
    status = serializers.IntegerField(
        default=200,
        min_value=100,
        max_value=599,
        help_text="The status of the view's response, if the request is allowed.",
    )


class ExplainView(ProblemView):
    """What the limiter would decide for a request now, and why: each rule that applies, and why the others do not.

    Nothing is charged, counted, logged or stored.
    """

    serializer_class = RateLimitQuestionSerializer
    permission_classes = (MayExplain,)
    throttle_classes = (RuleThrottle,)
    throttle_scope = "ratelimit-explain"
    answers = Explanation

    def post(self, request: Request) -> Response:
        sent = self.get_serializer(data=request.data)
        sent.is_valid(raise_exception=True)
        fields = dict(sent.validated_data)
        curl, headers, reference = fields.pop("curl"), tuple(fields.pop("headers").items()), fields.pop("reference")
        try:
            question, logged = with_curl(curl, Question(headers=headers, **fields)), None
            if reference:
                logged, question = question_about(reference, question)
            explanation = explain(question, request.user, logged)
        except CallerHidden as error:
            raise PermissionDenied(str(error)) from error
        except QuestionError as error:
            raise ValidationError({error.field: [str(error)]}) from error
        return Response(encoded(explanation), headers=PRIVATE)
