"""For drf-spectacular: what the views answer. Loaded with the addresses, where drf-spectacular is installed."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.extensions import OpenApiViewExtension
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.settings import api_settings

from ..conf import settings
from ..schema import LimitedResponses
from . import serializers

#: What is wrong with each parameter that is.
_WRONG: Final = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}
_PROBLEM: Final = "application/problem+json"
#: What OpenAPI describes elsewhere, and ignores among parameters.
_NO_PARAMETERS: Final = ("accept", "authorization", "content-type")


class _Answers(LimitedResponses):
    """Also tells that the middleware may answer before the view does, with a body of its own."""

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        operation = super().get_operation(*args, **kwargs)
        if operation:
            for status in ("403", "503"):
                content = operation["responses"][status]["content"]
                content.setdefault(_PROBLEM, next(iter(content.values())))
        return operation


def _described(name: str, *, many: bool = False, wrong: bool = False, missing: bool = False) -> None:
    """Have the view of this name described. many: a page of a list. wrong: may answer 400. missing: may answer 404."""

    class Described(OpenApiViewExtension):  # type: ignore[no-untyped-call]
        target_class = f"django_ratelimiter.api.views.{name}"

        def view_replacement(self) -> Any:
            original: Any = self.target_class
            answers: dict[int, Any] = {200: original.serializer_class(many=many)}
            if wrong:
                answers[400] = _WRONG
            for status in (401, 403, *((404,) if missing else ()), 503):
                answers[status] = serializers.RateLimitProblemSerializer
            projects: Any = api_settings.DEFAULT_SCHEMA_CLASS
            described = type("Described", (_Answers, projects), {})
            view = type(name, (original,), {"__doc__": original.__doc__, "schema": described()})
            return extend_schema(responses=answers, parameters=_parameters(name))(view)


def _parameters(name: str) -> list[OpenApiParameter]:
    header = settings.API_KEY_HEADER
    if name != "Own" or header.lower() in _NO_PARAMETERS:
        return []
    told = "A known API key, where the caller is no authenticated user."
    return [OpenApiParameter(header, str, OpenApiParameter.HEADER, description=told)]


_described("Rules", many=True, wrong=True, missing=True)
_described("Rule", missing=True)
_described("Partitions", many=True, wrong=True, missing=True)
_described("Usage", many=True, wrong=True, missing=True)
_described("Totals", many=True, wrong=True, missing=True)
_described("Own")
