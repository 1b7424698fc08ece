"""Errors of the POST views, as problem documents (RFC 9457): what was wrong, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from itertools import islice
from typing import Any, Final

from django.core.exceptions import ValidationError as ModelError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, ParseError, PermissionDenied, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings

from ...exceptions import EngineUnavailable
from ...headers import PROBLEM_JSON
from ...inspection.acts import InvalidAct
from ...inspection.caller import UnknownCaller
from ...inspection.explanation import CallerHidden
from ...inspection.question import QuestionError
from ...inspection.report import PRIVATE, encoded
from ...values.bounds import MAX_LISTED, MAX_NAMES, MAX_TEXT, closest, encodable
from .answers import ApiView

#: Unknown names of fields are repeated up to here.
MAX_FIELD_NAME: Final = 60

#: DRF's name for errors that concern several fields.
_WHOLE: Final = (api_settings.NON_FIELD_ERRORS_KEY, "detail")


class StrictSerializer(serializers.Serializer[Any]):
    """A body in which an unknown field is an error, because its name may be misspelt."""

    def to_internal_value(self, data: Any) -> Any:
        if type(data) is dict:  # a form may send more, such as its token
            unknown = (name for name in data if name not in self.fields)
            if wrong := {name[:MAX_FIELD_NAME]: [self._unknown(name)] for name in islice(unknown, MAX_NAMES)}:
                raise ValidationError(wrong)
        return super().to_internal_value(data)

    def _unknown(self, name: str) -> str:
        if likely := closest(name, self.fields):
            return _("Unknown field. Did you mean “%(name)s”?") % {"name": likely}
        return _("Unknown field. The fields are: %(names)s.") % {"names": ", ".join(self.fields)}


class BodyTooLarge(APIException):
    """The body is longer than any question or act needs."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = gettext_lazy("The body is too large: at most 64 KB are read.")


class ProblemView(ApiView):
    """A POST view whose errors are problem documents; browsers get them on a page."""

    def post(self, request: Request) -> Response:
        sent = self.get_serializer(data=request.data)
        sent.is_valid(raise_exception=True)
        return Response(encoded(self.answer(request, dict(sent.validated_data))), headers=PRIVATE)

    def answer(self, request: Request, fields: dict[str, Any]) -> Any:
        """Return the report for the valid fields of a body."""
        raise NotImplementedError

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check who asks, then how much, before any parser reads it. Parsers of a project are bound, too."""
        super().initial(request, *args, **kwargs)
        if int(request.META.get("CONTENT_LENGTH") or 0) > MAX_TEXT:
            raise BodyTooLarge
        try:
            encodable(request.data)
        except (RecursionError, UnicodeEncodeError) as error:
            raise ParseError(_("JSON may not be nested so deeply, nor hold half of a surrogate pair.")) from error

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, EngineUnavailable):  # DRF would roll back ATOMIC_REQUESTS, and the log entry with it
            response = Response({"detail": str(exc)}, status=status.HTTP_503_SERVICE_UNAVAILABLE, exception=True)
        else:
            response = super().handle_exception(_as_frameworks(exc))
        if isinstance(response.data, dict | list):
            response.data = problem_of(response.status_code, response.data)
        return response

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if response.status_code >= 400 and getattr(request.accepted_renderer, "format", "") == "json":
            response.content_type = PROBLEM_JSON
        return response


def _as_frameworks(error: Exception) -> Exception:
    """Return DRF's exception for one of `inspection`."""
    if isinstance(error, QuestionError | InvalidAct | UnknownCaller):
        return ValidationError({error.field: [str(error)]})
    if isinstance(error, ModelError):
        return ValidationError({"detail": error.messages})
    return PermissionDenied(str(error)) if isinstance(error, CallerHidden) else error


def problem_of(status: int, data: Any) -> dict[str, Any]:
    """Return the problem document for DRF's data of an error."""
    title = HTTPStatus(status).phrase
    problem: dict[str, Any] = {"type": "about:blank", "title": title, "status": status}
    if isinstance(data, dict) and isinstance(data.get("detail"), str):
        return {**problem, "detail": data["detail"]}
    found = list(islice(_flattened(data), MAX_LISTED))
    errors = [{"pointer": f"#/{place}", "detail": text} if place else {"detail": text} for place, text in found]
    detail = " ".join(f"{place}: {text}" if place else text for place, text in found)
    return {**problem, "detail": detail, "errors": errors}


def _flattened(data: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield each error with its place, such as "known/0"."""
    if isinstance(data, dict):
        for name, rest in data.items():
            inner = place if name in _WHOLE else f"{place}/{name}" if place else str(name)
            yield from _flattened(rest, inner)
    elif isinstance(data, list | tuple):
        for each in data:
            yield from _flattened(each, place)
    else:
        yield place, str(data)
