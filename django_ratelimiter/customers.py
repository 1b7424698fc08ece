"""Customers: the project's own rows behind callers, such as accounts or firms. The setting CUSTOMER leads to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import isfunction
from typing import Any, Final, NamedTuple, get_args, get_type_hints

from django.contrib.auth import get_user_model
from django.db.models import Model
from django.db.models.fields.related_descriptors import ReverseManyToOneDescriptor
from django.utils.module_loading import import_string

from . import tenants
from .conf import settings
from .conf.values import CALLERS, is_attribute_path
from .logs import logger
from .values.terminal import without_controls

#: Maximum length of labels.
MAX_LABEL: Final = 200


class Customer(NamedTuple):
    """What is kept of a customer's row.

    value: what rules count by, its primary key as text, see `tenants.key_of`. label: its `str()`. model: its label,
    such as "shop.Account".
    """

    value: str
    label: str
    model: str


def customer_model() -> type[Model] | None:
    """Return the model of the project's customers; `None` = it cannot be told from the code, or there are several."""
    found = {model_at(path)[0] for path in settings.CUSTOMER} - {None}
    return found.pop() if len(found) == 1 else None


def key_model() -> type[Model] | None:
    """Return the model whose rows API_KEY_RESOLVER returns; `None` = none, or it cannot be told from the code."""
    return model_at(settings.API_KEY_RESOLVER, ())[0] if settings.API_KEY_RESOLVER else None


def model_at(path: str, subjects: Sequence[str] = CALLERS) -> tuple[type[Model] | None, str]:
    """Return the model whose rows a path gives, and why it can give nothing. `None` and "" = it cannot be told.

    path: attributes, which are followed over relations, or a callable, of which the return annotation counts.
    subjects: what paths of attributes begin with.
    """
    if not is_attribute_path(path, subjects):
        with suppress(ImportError):
            return _annotated(import_string(path)), ""
        return None, ""
    subject, *names = path.split(".")
    model: Any = get_user_model() if subject == "user" else None
    if subject == "api_key":
        if settings.API_KEY_RESOLVER is None:
            return None, "without API_KEY_RESOLVER, an API key has no attributes."
        model = key_model()
    elif subject == "customer":
        if not settings.CUSTOMER:
            return None, "without CUSTOMER, no caller has a customer."
        model = customer_model()
    for name in names if model else ():
        known, label = getattr(model, name, None), model._meta.label
        if known is None and not hasattr(model, "__getattr__"):
            return None, f"{label} has no attribute {name}."
        if isfunction(known) or isinstance(known, ReverseManyToOneDescriptor):
            return None, f"{label}.{name} is {'a method' if isfunction(known) else 'a manager of many rows'}."
        relation = getattr(known, "related", None) or getattr(known, "field", None)
        if relation is None or not relation.is_relation:
            return _annotated(getattr(known, "fget", None)) if name == names[-1] else None, ""
        model = relation.related_model
    return model, ""


def _annotated(function: Callable[..., Any] | None) -> type[Model] | None:
    """Return the model of the rows that a function returns by its annotation, such as `-> Account | None`."""
    try:
        hint = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # a name that is not imported; no function
        return None
    found = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, Model)]
    return found[0] if len(found) == 1 else None


def of_row(row: Any) -> Customer | None:
    """Return the customer of a row. Any other object is an error in the log, and counts as missing."""
    if row is None:
        return None
    model = customer_model()
    if not isinstance(row, (model and model._meta.concrete_model) or Model) or row.pk is None:
        wanted = model._meta.label if model else "a model"
        logger.error("CUSTOMER led to a %s, not to a stored row of %s; it is missing.", type(row).__name__, wanted)
        return None
    return Customer(value_of(row), label_of(row), (model or type(row))._meta.label)


def value_of(row: Model) -> str:
    """Return what rules by customer count this row by."""
    return tenants.key_of(type(row), row.pk)


def label_of(row: Model) -> str:
    """Return the name of a row, such as a customer, for people."""
    return without_controls(str(row))[:MAX_LABEL]


def row_of(value: str) -> Model | None:
    """Return the row of a customer by its value; `None` = it was deleted, or never one."""
    model = customer_model()
    return next(iter(tenants.rows_of(model, [value])), None) if model else None
