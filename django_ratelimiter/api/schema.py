"""For drf-spectacular: the responses of the views. Imported by the URLs if drf-spectacular is installed."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.extensions import OpenApiViewExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import extend_schema
from rest_framework.settings import api_settings

from ..conf import settings
from ..schema import LimitedResponses
from . import serializers
from .permissions import IsKnownCaller
from .support.answers import serializer_of

#: The error for each invalid parameter.
_WRONG: Final = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}}
_PROBLEM: Final = "application/problem+json"
_API_KEY: Final = "rateLimitApiKey"

#: Problem documents of POST views.
_TEXT: Final = {"type": "string"}
_MEMBERS: Final = {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT}
_FAILED: Final = {"type": "object", "properties": _MEMBERS, "required": [*_MEMBERS]}
_ERROR: Final = {"type": "object", "properties": {"pointer": _TEXT, "detail": _TEXT}, "required": ["detail"]}
_ERRORS: Final = {"type": "array", "items": _ERROR}
_INVALID: Final = {"type": "object", "properties": {**_MEMBERS, "errors": _ERRORS}, "required": [*_MEMBERS]}


class _Answers(LimitedResponses):
    """Adds that the middleware may respond before the view does, with another body."""

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        operation = super().get_operation(*args, **kwargs)
        if operation:
            for status in ("403", "503"):
                content = operation["responses"][status]["content"]
                content.setdefault(_PROBLEM, next(iter(content.values())))
        return operation

    def get_auth(self) -> list[Any]:
        """Return the view's authentication schemes, and the API key if its permission accepts one."""
        accepted: list[Any] = super().get_auth()  # type: ignore[misc]
        if IsKnownCaller not in self.view.permission_classes:
            return accepted
        scheme = ResolvedComponent(  # type: ignore[no-untyped-call]
            name=_API_KEY,
            type=ResolvedComponent.SECURITY_SCHEMA,
            object=_API_KEY,
            schema={"type": "apiKey", "in": "header", "name": settings.API_KEY_HEADER},
        )
        self.registry.register_on_missing(scheme)  # type: ignore[attr-defined]
        return [*accepted, {_API_KEY: []}]


def _described(name: str, *, many: bool = False, wrong: bool = False, missing: bool = False) -> None:
    """Describe the view of this name. many: a page of a list. wrong: may return 400. missing: may return 404."""

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
            return extend_schema(responses=answers)(view)


_described("RuleListView", many=True, wrong=True, missing=True)
_described("RuleDetailView", missing=True)
_described("PartitionsView", many=True, wrong=True, missing=True)
_described("UsageView", many=True, wrong=True, missing=True)
_described("TotalsView", many=True, wrong=True, missing=True)
_described("MeView")


def _described_post(target: str) -> None:
    """Describe a POST view of this package: its responses and its problem documents."""

    class Described(OpenApiViewExtension):  # type: ignore[no-untyped-call]
        target_class = f"django_ratelimiter.api.support.{target}"

        def view_replacement(self) -> Any:
            original: Any = self.target_class
            projects: Any = api_settings.DEFAULT_SCHEMA_CLASS
            described = type("Described", (_Answers, projects), {})
            view = type(original.__name__, (original,), {"__doc__": original.__doc__, "schema": described()})
            problems = {(status, _PROBLEM): _INVALID if status == 400 else _FAILED for status in (400, 401, 403, 503)}
            return extend_schema(
                request=original.serializer_class, responses={200: serializer_of(original.answers), **problems}
            )(view)


for _name in ("CallerView", "LeasesView", "EndLeaseView", "ResetView", "GrantView", "EndAccessView"):
    _described_post(f"callers.{_name}")
_described_post("explain.ExplainView")
