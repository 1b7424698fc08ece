"""Changes of single values in a YAML text. All other characters stay the same.

Adding or removing a tier, a rule, a limit or a list in several lines is left to `updating`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from .yaml import composed, scalar_of, written

#: The rest of a line after a value.
_REST: Final = re.compile(r"[ \t]*(?:#.*)?(?:\n|\Z)")
_GAP: Final = re.compile(r" +(?=#)")
#: The second field of a file.
FIRST: Final = "exported_version"
#: Spaces before a comment, as YAML linters require.
_ENOUGH_SPACE: Final = 2


class _MoreThanValues(Exception):
    """Raised if more than single values must change."""


class _Edit(NamedTuple):
    """start, end: the replaced part, in characters from the beginning of the text."""

    start: int
    end: int
    text: str


def edited(text: str, before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Return a YAML text that means `before`, changed to mean `after`; `None` if more than values must change.

    Raises YamlMissing.
    """
    root = composed(text)
    if root is None or root.id != "mapping" or _refers(root, set()):
        return None
    edits, wanted = _Edits(text), _plain(root)
    try:
        edits.mapping(root, wanted, before, after, is_inline=False)
    except _MoreThanValues:
        return None
    changed = edits.apply()
    return changed if _plain(composed(changed)) == wanted else None


class _Edits:
    """The edits of one text. They are also applied to the document's plain values, to compare the result."""

    def __init__(self, text: str) -> None:
        self._text, self._edits = text, list[_Edit]()

    def apply(self) -> str:
        """Return the changed text."""
        text = self._text
        for start, end, new in sorted(self._edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def mapping(
        self, node: Any, wanted: dict[str, Any], before: dict[str, Any], after: dict[str, Any], *, is_inline: bool
    ) -> None:
        """Collect the differences of a mapping. wanted: its plain values, which change. is_inline: in brackets."""
        is_inline = is_inline or node.flow_style
        pairs = {str(key.value): (key, value) for key, value in node.value}
        for name in (before.keys() - after.keys()) & pairs.keys():
            self._delete(*pairs[name], is_inline=is_inline)
            del wanted[name]
        for name, value in after.items():
            if before.get(name) == value and name in before:
                continue
            if name not in pairs:
                self._add(node, name, value, is_inline=is_inline)
                wanted[name] = value
            else:
                wanted[name] = self._value(pairs[name][1], wanted[name], before.get(name), value, is_inline=is_inline)

    def _value(self, node: Any, wanted: Any, before: Any, after: Any, *, is_inline: bool) -> Any:
        """Collect the differences of a value, and return its new meaning."""
        if node.id == "scalar" and not isinstance(after, (dict, list)):
            self._replace(node, written(after, quote=node.style or "", is_inline=is_inline))
        elif node.id == "mapping" and before and after and isinstance(after, dict):
            self.mapping(node, wanted, before, after, is_inline=is_inline)
            return wanted
        elif node.id == "sequence" and _are_limits(before) and _are_limits(after):
            self._limits(node, wanted, before, after, is_inline=is_inline)
            return wanted
        elif node.id == "sequence" and node.flow_style and isinstance(after, list) and not _are_limits(after):
            self._replace(node, written(after, is_inline=is_inline))
        else:
            raise _MoreThanValues
        return after

    def _limits(
        self,
        node: Any,
        wanted: list[Any],
        before: list[dict[str, Any]],
        after: list[dict[str, Any]],
        *,
        is_inline: bool,
    ) -> None:
        """Collect the differences of limits, if none is added or removed, or becomes a limit for something else."""
        if not len(node.value) == len(before) == len(after) or list(map(meaning, before)) != list(map(meaning, after)):
            raise _MoreThanValues
        for each, plain, old, new in zip(node.value, wanted, before, after, strict=True):
            self.mapping(each, plain, old, new, is_inline=is_inline or node.flow_style)

    def _replace(self, node: Any, new: str) -> None:
        start, end = _span(node)
        if start == end or self._text[start] in "&!|>" or "\n" in new:
            raise _MoreThanValues
        if gap := _GAP.match(self._text, end):  # the comment keeps its column, if there is room
            space = end - start + len(gap[0]) - len(new)
            new += " " * max(space, min(len(gap[0]), _ENOUGH_SPACE))
            end = gap.end()
        self._edits.append(_Edit(start, end, new))

    def _delete(self, key: Any, value: Any, *, is_inline: bool) -> None:
        """Delete the line of a field, with the comment after it."""
        start = self._start_of_line(key)
        rest = _REST.match(self._text, _span(value)[1])
        if is_inline or value.id == "mapping" or rest is None or self._text[start : _span(key)[0]].strip(" "):
            raise _MoreThanValues
        self._edits.append(_Edit(start, rest.end(), ""))

    def _add(self, node: Any, name: str, value: Any, *, is_inline: bool) -> None:
        """Add a field."""
        new = f"{name}: {written(value, is_inline=is_inline)}"
        if isinstance(value, dict) or _are_limits(value) or not node.value or "\n" in new:
            raise _MoreThanValues
        if is_inline:
            at = _span(node.value[-1][1])[1]
            self._edits.append(_Edit(at, at, f", {new}"))
            return
        at, key = self._end_of_field(node, is_first=name == FIRST), node.value[0][0]
        indent = " " * (_span(key)[0] - self._start_of_line(key))
        is_ended = self._text[at - 1 : at] in ("", "\n")
        self._edits.append(_Edit(at, at, f"{indent}{new}\n" if is_ended else f"\n{indent}{new}"))

    def _end_of_field(self, node: Any, *, is_first: bool) -> int:
        """Return where the line of a mapping's last field, or its first one, ends. Each field is on its own line."""
        ends = [_span(value)[1] for _, value in node.value if value.id == "scalar" and value.style not in ("|", ">")]
        rest = _REST.match(self._text, ends[0 if is_first else -1]) if ends else None
        if rest is None:
            raise _MoreThanValues
        return rest.end()

    def _start_of_line(self, node: Any) -> int:
        return self._text.rfind("\n", 0, _span(node)[0]) + 1


def meaning(limit: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values that distinguish limits of a rule."""
    return tuple(limit.get(name) for name in ("tier", "algorithm", "window_seconds", "calendar", "unlimited"))


def _are_limits(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _span(node: Any) -> Sequence[int]:
    return node.start_mark.index, node.end_mark.index


def _refers(node: Any, seen: set[int]) -> bool:
    """Return whether a node is used twice, by a reference such as `*name`."""
    if id(node) in seen:
        return True
    seen.add(id(node))
    if node.id == "scalar":
        return False
    parts = node.value if node.id == "sequence" else [part for pair in node.value for part in pair]
    return any(_refers(part, seen) for part in parts)


def _plain(node: Any) -> Any:
    """Return the plain value of a node."""
    if node.id == "mapping":
        return {str(key.value): _plain(value) for key, value in node.value}
    return [_plain(each) for each in node.value] if node.id == "sequence" else scalar_of(node)
