"""Changing an existing YAML file: only the values that differ change."""

from __future__ import annotations

from typing import Any

from .edits import edited, meaning
from .yaml import commented, editor, text_of


def updated(text: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return a YAML text that means `before`, changed to mean `after`. Equal parts stay as they are written.

    So comments and explicit defaults stay. If more than values differ, the text gets a new
    indentation, and brackets over several lines become one line, without the comments in them. Raises YamlMissing.
    """
    if (changed := edited(text, before, after)) is not None:
        return changed
    found = editor().load(text)
    _update(found, before, after)
    return text_of(found)


def _update(found: Any, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Apply the difference of two documents to a ruamel mapping."""
    keys = {str(key): key for key in found}
    for name in before.keys() - after.keys():
        if name in keys:
            del found[keys[name]]
    for name, value in after.items():
        old, key = before.get(name), keys.get(name, name)
        if old == value:
            continue
        if not value:
            found[key] = commented(value)
        elif isinstance(old, dict) and isinstance(found.get(key), dict):
            _update(found[key], old, value)
        elif isinstance(old, list) and isinstance(found.get(key), list) and all(isinstance(each, dict) for each in old):
            _update_list(found[key], old, value)
        else:
            found[key] = commented(value)


def _update_list(found: Any, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Apply the difference of two lists of limits to a ruamel list; those for the same are changed where they are."""
    before, wanted = [*before], [meaning(each) for each in after]
    for place in reversed(range(len(before))):
        if meaning(before[place]) not in wanted:
            del found[place], before[place]
    for place, value in enumerate(after):
        if place < len(before) and meaning(before[place]) == wanted[place]:
            _update(found[place], before[place], value)
        else:
            found.insert(place, commented(value))
            before.insert(place, value)
    del found[len(after) :]
