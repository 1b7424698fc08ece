"""For drf-spectacular: adds the response 429 and its fields to the OpenAPI schema of limited views.

Name `AutoSchema` in DEFAULT_SCHEMA_CLASS, or add `LimitedResponses` to the bases of your own class.
"""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.openapi import AutoSchema as FrameworksSchema

from .conf import settings

_NUMBER: Final = {"type": "integer", "minimum": 0}
_TEXT: Final = {"type": "string"}

#: The response fields of each family in `HEADERS`.
_FIELDS: Final[dict[str, dict[str, tuple[dict[str, Any], str]]]] = {
    "ratelimit": {
        "RateLimit-Policy": (
            _TEXT,
            "The limits that apply to the request: quota (q) and window in seconds (w) of each.",
        ),
        "RateLimit": (_TEXT, "Their remaining quota (r), and the seconds until there is more (t)."),
    },
    "x-ratelimit": {
        "X-RateLimit-Limit": (_NUMBER, "The quota of the limit that rejected the request."),
        "X-RateLimit-Remaining": (_NUMBER, "Its remaining quota."),
        "X-RateLimit-Reset": (_NUMBER, "When the full quota is back, in seconds since 1970."),
        "X-RateLimit-Reference": (_TEXT, "Identifies the rejection for the operators of this site."),
    },
}
_RETRY_AFTER: Final = {
    "schema": {"type": "integer", "minimum": 1},
    "description": "Seconds until the request would pass. Absent if it never will.",
}
#: DRF's body, if the view's throttle rejects.
_REFERENCE: Final = {**_TEXT, "description": "Identifies the rejection for the operators of this site."}
_DETAIL: Final = {
    "type": "object",
    "properties": {"detail": _TEXT, "reference": _REFERENCE},
    "required": ["detail"],
}
#: The middleware's body, if it rejects before the view is called.
_PROBLEM: Final = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "violated-policies": {"type": "array", "items": _TEXT},
        "reference": _REFERENCE,
    },
    "required": ["type", "title", "status", "detail", "violated-policies"],
}


class LimitedResponses:
    """Adds 429 to the operations of views with a throttle or decorator of this package, unless they declare it."""

    view: Any
    method: str

    def get_operation(self, *args: Any, **kwargs: Any) -> Any:
        operation = super().get_operation(*args, **kwargs)  # type: ignore[misc]
        if operation and self.is_limited():
            operation["responses"].setdefault("429", self.rejection())
        return operation

    def is_limited(self) -> bool:
        """True if the view has its own limits, besides the middleware's rules, which only the database contains."""
        throttled = any(getattr(throttle, "decides_rules", False) for throttle in self.view.throttle_classes)
        handler = getattr(self.view, getattr(self.view, "action", None) or self.method.lower(), None)
        return throttled or any(
            hasattr(decorated, "ratelimits")
            for decorated in (self.view, handler, self.view.check_throttles, self.view.dispatch, *_wrapped_by(handler))
        )

    def rejection(self) -> dict[str, Any]:
        """Return the response object of a rejection."""
        headers: dict[str, Any] = {"Retry-After": _RETRY_AFTER}
        for family, fields in _FIELDS.items():
            if family in settings.HEADERS:
                headers |= {name: {"schema": shape, "description": text} for name, (shape, text) in fields.items()}
        media_types: list[str] = self.map_renderers("media_type")  # type: ignore[attr-defined]
        content = {media_type: {"schema": _DETAIL} for media_type in media_types}
        content["application/problem+json"] = {"schema": _PROBLEM}
        return {"description": "Too many requests.", "headers": headers, "content": content}


def _wrapped_by(handler: Any) -> list[Any]:
    """Return the functions that a handler made by `@api_view` calls: the decorated function."""
    return [cell.cell_contents for cell in getattr(handler, "__closure__", None) or ()]


class AutoSchema(LimitedResponses, FrameworksSchema):
    """drf-spectacular's class, with the responses of limited views."""
