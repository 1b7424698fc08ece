"""Selects for pages with hundreds of them: Django renders a template for each single option."""

from __future__ import annotations

from typing import Any

from django import forms
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString


class PlainSelect(forms.Select):
    """A select without groups, rendered as one string. Its HTML is the same as Django's."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        chosen = {str(each) for each in self.format_value(value)} or {""}
        attributes = self.build_attrs(self.attrs, {**(attrs or {}), "name": name})
        options = format_html_join(
            "",
            '<option value="{}"{}>{}</option>',
            (
                (key, SafeString(" selected") if str(key) in chosen else "", label)
                for key, label in (("" if key is None else str(key), label) for key, label in self.choices)
            ),
        )
        return format_html("<select{}>{}</select>", flatatt(attributes), options)
