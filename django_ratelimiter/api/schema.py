"""For drf-spectacular: the responses of the views. Imported by the URLs if drf-spectacular is installed."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.extensions import OpenApiViewExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.settings import api_settings

from ..conf import settings
from ..schema import LimitedResponses
from . import serializers
from .pagination import BucketPages
from .permissions import IsKnownCaller
from .support.answers import ApiView, serializer_of
from .support.problems import ProblemView

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


class Described(OpenApiViewExtension):  # type: ignore[no-untyped-call]
    """Describes the views of this package, whichever schema class the project uses."""

    target_class = ApiView
    match_subclasses = True

    def view_replacement(self) -> Any:
        original: Any = self.target
        projects: Any = api_settings.DEFAULT_SCHEMA_CLASS
        described = type("Described", (_Answers, projects), {})
        view = type(original.__name__, (original,), {"__doc__": original.__doc__, "schema": described()})
        return extend_schema(
            parameters=_parameters(original), request=original.serializer_class, responses=_responses(original)
        )(view)


def _parameters(view: Any) -> list[Any]:
    """Return the query parameters of a list. Cursors have no numbers of pages."""
    if getattr(view, "query_class", None) is None or view.pagination_class is None:
        return []
    return [view.query_class, *([OpenApiParameter("page", exclude=True)] * (view.pagination_class is BucketPages))]


def _responses(view: Any) -> dict[Any, Any]:
    """Return the responses of a view, by status."""
    if issubclass(view, ProblemView):
        documents = {(status, _PROBLEM): _INVALID if status == 400 else _FAILED for status in (400, 401, 403, 503)}
        return {200: serializer_of(view.answers), **documents}
    problems: dict[Any, Any] = dict.fromkeys((401, 403, 503), serializers.RateLimitProblemSerializer)
    if view.answers is not None:
        return {200: serializer_of(view.answers), **problems}
    is_list = view.pagination_class is not None
    wrong = {400: _WRONG} if is_list else {}
    return {200: view.serializer_class(many=is_list), 404: problems[401], **wrong, **problems}
