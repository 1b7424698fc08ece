"""Rejections of a row by the database and by the forms."""

from __future__ import annotations

import re

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, models, transaction


def rejected(row: models.Model) -> dict[str, list[str]]:
    """What the forms say against a row, by field."""
    with pytest.raises(ValidationError) as caught:
        row.full_clean()
    return caught.value.message_dict


def assert_database_rejects(constraint: str, row: models.Model) -> None:
    """The row violates this constraint. SQLite names only the checks, and for unique ones the columns.

    MySQL and MariaDB hold no unique constraint with a condition or an expression: there only forms reject the row.
    """
    named = [each for each in row._meta.constraints if re.fullmatch(constraint, each.name)]
    assert named
    if not all(_can_be_held(each) for each in named):
        row.save(force_insert=True)
        return
    with pytest.raises(IntegrityError, match=rf"(?i){constraint}|UNIQUE constraint failed"), transaction.atomic():
        row.save(force_insert=True)


def _can_be_held(constraint: models.BaseConstraint) -> bool:
    if not isinstance(constraint, models.UniqueConstraint):
        return True
    features = connection.features
    conditional, expressions = constraint.condition is not None, bool(constraint.expressions)
    return (features.supports_partial_indexes or not conditional) and (
        features.supports_expression_indexes or not expressions
    )
