"""Files that subcommands write."""

from __future__ import annotations

from pathlib import Path

from django.core.management.base import CommandError


def write_file(name: str, text: str) -> None:
    """Write a text into a file. Raises CommandError if it cannot be written."""
    try:
        Path(name).write_text(text, "utf-8")
    except OSError as error:
        raise CommandError(str(error)) from error
