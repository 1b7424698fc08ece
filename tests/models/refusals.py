"""How the database and the forms refuse a row."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction


def refused(row: models.Model) -> dict[str, list[str]]:
    """What the forms say against a row, by field."""
    with pytest.raises(ValidationError) as caught:
        row.full_clean()
    return caught.value.message_dict


def assert_database_refuses(constraint: str, row: models.Model) -> None:
    """The row violates this constraint. SQLite names only the checks, and for unique ones the columns."""
    with pytest.raises(IntegrityError, match=rf"(?i){constraint}|UNIQUE constraint failed"), transaction.atomic():
        row.save(force_insert=True)
