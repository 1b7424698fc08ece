"""Errors of subcommands, as the one text with which a command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..conf import without_secrets
from ..exceptions import EngineUnavailable, WrongRedis, told_safely
from ..forecast.logs.formats import WrongFormat
from ..inspection.caller import UnknownCaller
from ..inspection.question import QuestionError
from ..rules.files.reading import LibraryMissing
from ..rules.files.rows import WrongFile
from ..rules.stored.history.rows import NotApplied
from .output import of_file
from .traffic import WrongOption

#: Errors whose text says what is wrong.
_IN_WORDS: Final = (NotApplied, UnknownCaller, WrongFormat, WrongOption, WrongRedis, LibraryMissing)


@contextmanager
def in_words(subcommand: str) -> Iterator[None]:
    """Raise CommandError instead of an error that the subcommand does not explain itself."""
    try:
        yield
    except ImproperlyConfigured as error:
        raise CommandError(without_secrets(told_safely(error))) from error
    except DatabaseError as error:
        raise CommandError(_("The database cannot be reached now: %s") % error) from error
    except EngineUnavailable as error:
        raise CommandError(_("Redis cannot be reached now: %s") % error) from error
    except QuestionError as error:
        raise CommandError(f"{error.field}: {error}") from error
    except WrongFile as error:
        count = len(error.faults)
        text = ngettext("%d fault:", "%d faults:", count)
        if subcommand == "apply":  # the others never change anything
            text = ngettext("%d fault; nothing was changed:", "%d faults; nothing was changed:", count)
        raise CommandError(f"{text % count}\n{error}") from error  # each error on its own line, for programs
    except OSError as error:
        raise CommandError(of_file(error)) from error
    except _IN_WORDS as error:
        raise CommandError(str(error)) from error
