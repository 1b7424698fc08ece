"""Parses a log line about a rejected request: which rules rejected which caller."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from ..rules.records import RuleRecord
from ..values.bounds import MAX_TEXT, json_from
from ..values.references import Reference, parse_reference
from .question import Question

_MESSAGE: Final = re.compile(r"A request was rejected by ([\w:.-]+(?:, [\w:.-]+)*)\.(?=\s|$|\")")
#: `rule=export`, `"rule": "export"` or `rule='export'`, as formatters write the attributes of a record.
_ATTRIBUTE: Final = re.compile(r"""["']?\b(rule|tier|partition|version|reference)["']?\s*[=:]\s*["']?([\w:.#-]+)""")
_NONE: Final = ("None", "null", "")


class LoggedRefusal(NamedTuple):
    """The content of a line. rules: those that rejected the request. digest: of the caller, in the names of keys.

    For a reference, `digest` is only its start.
    """

    rules: tuple[str, ...]
    rule: str = ""
    tier: str = ""
    digest: str = ""
    version: str = ""

    def is_of(self, rule: str, digest: str) -> bool:
        """Return whether it is about this rule's counter of the caller with this digest: rules can share digests.

        False if the line names no caller.
        """
        if rule not in self.rules or not self.digest:
            return False
        return digest == self.digest or Reference("", self.digest).is_of(digest)


def about_rule(question: Question, rule: RuleRecord) -> Question:
    """Return the question about a request that a rule matches, unless the question names a request itself."""
    if question.path or question.view:
        return question
    path = rule.path if rule.path_kind in ("exact", "prefix") else ""
    method = question.method if not rule.methods or question.method in rule.methods else min(rule.methods)
    return replace(question, method=method, path=path, view=rule.view_name, scope=question.scope or rule.scope)


def parse_log_line(text: str, slugs: Iterable[str] = ()) -> LoggedRefusal | None:
    """Return the content of the line; `None` if it is not about a rejected request, or longer than MAX_TEXT.

    The body of a response to one is accepted as well, and so is its reference alone.
    It contains neither the path nor the caller, only the digest; see `limiter/events.py`. slugs: of
    rules that its reference may name, if other words look like one.
    """
    first = text.split(None, 1)[:1]
    if len(text) > MAX_TEXT:
        return None
    if first and first[0].rpartition("/")[2] == "curl":  # its data may look like a line
        return None
    found = _attributes(text)
    reference = parse_reference(found.get("reference", "")) or parse_reference(text, slugs)
    if reference is not None and not found.get("partition"):
        found |= {"rule": reference.rule, "partition": reference.start}
    message = _MESSAGE.search(found.pop("message", "") or text)
    rules = tuple(message[1].split(", ")) if message else ()
    if not rules and not found.get("rule"):
        return None
    rule = found.get("rule") or rules[0]
    return LoggedRefusal(
        rules or (rule,), rule, found.get("tier", ""), found.get("partition", ""), found.get("version", "")
    )


def _attributes(text: str) -> dict[str, str]:
    try:
        found = json_from(text[text.index("{") :])
    except ValueError:
        found = None
    if isinstance(found, dict):
        pairs = {name: str(value) for name, value in found.items() if not isinstance(value, dict | list)}
    else:
        pairs = dict(_ATTRIBUTE.findall(text))
    return {name: value for name, value in pairs.items() if value not in _NONE}
