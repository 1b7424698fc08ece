"""Serializers made from reports and acts, whose members are explained where they are declared.

Those of reports only describe responses, for the OpenAPI schema: `inspection.report.encoded` makes the responses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, get_args, get_origin

from rest_framework import serializers
from rest_framework.generics import GenericAPIView

from ...inspection.report import is_report, members_of
from ...throttling import RuleThrottle
from ..queries import EndField

#: All others are texts: a rule is its slug, and enums of kinds and modes could conflict with names of the project.
_PLAIN: Final[dict[Any, Any]] = {
    bool: serializers.BooleanField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    date: serializers.DateField,
    datetime: EndField,  # all that acts take are ends
    Decimal: partial(serializers.DecimalField, max_digits=8, decimal_places=3),
}


class ApiView(GenericAPIView[Any]):
    """A view of this package, whatever the project's defaults for its own views are."""

    throttle_classes: Any = (RuleThrottle,)
    versioning_class = None
    filter_backends = ()
    pagination_class: Any = None
    #: The class of its report; `None` = it has a serializer.
    answers: type[Any] | None = None


@cache
def serializer_of(report: type[Any]) -> type[serializers.Serializer[Any]]:
    """Return the serializer that describes the data of a report."""
    made = {"__doc__": report.__doc__, "__module__": __name__, **fields_of(report)}
    return type(f"RateLimit{report.__name__}Serializer", (serializers.Serializer,), made)


def fields_of(report: type[Any], optional: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields that describe the members of a report, or of an act. optional: those that are not required."""
    return {
        name: _field(hint, **({"required": False} if name in optional else {}))
        for name, hint in members_of(report).items()
    }


def _field(hint: Any, **options: Any) -> Any:
    """Return the field that describes values of this type."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _field(parts[0], help_text=parts[1], **options)
    if origin is UnionType:
        [known] = [each for each in parts if each is not NoneType]
        return _field(known, allow_null=True, **options)
    if origin is Mapping:
        return serializers.DictField(child=_field(parts[1]), **options)
    if origin in (tuple, list, Sequence):
        if is_report(parts[0]):
            return serializer_of(parts[0])(many=True, **options)
        return serializers.ListField(child=_field(parts[0]), **options)
    if is_report(hint):
        return serializer_of(hint)(**options)
    return _PLAIN.get(hint, serializers.CharField)(**options)
