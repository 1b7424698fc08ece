"""Signals that projects may connect to."""

from __future__ import annotations

from django.dispatch import Signal

#: A new version of the rule set was committed in this process. Sent after the commit, with `version`: `Version`.
rules_changed = Signal()
