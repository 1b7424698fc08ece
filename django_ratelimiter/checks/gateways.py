"""The checks of views for gateways: that only the gateway can use them."""

from __future__ import annotations

from django.core import checks
from django.core.checks import CheckMessage
from django.urls import get_resolver

from ..conf import django_setting, settings
from ..middleware import ASKED_BY_GATEWAYS
from ..rules.routes import all_views
from .common import TAG, are_invalid


def check_gateways(**_kwargs: object) -> list[CheckMessage]:
    """E010: no caller can use these views. W022: every caller that reaches this server can."""
    if are_invalid("TRUSTED_PROXIES") or not django_setting("ROOT_URLCONF"):
        return []
    trusted = settings.TRUSTED_PROXIES
    if not trusted.hops and (trusted.networks or trusted.unix):
        return []
    routes = [match.route for match in all_views(get_resolver()) if hasattr(match.func, ASKED_BY_GATEWAYS)]
    if not routes:
        return []
    shown = ", ".join(f"/{route}" for route in routes)
    if trusted.hops:
        return [
            checks.Warning(
                f"RATELIMITER['TRUSTED_PROXIES'] is a number, so every caller that can reach {shown} is trusted "
                "there: a caller could choose the path, the method and the address of the request to decide.",
                hint='Name the networks of your gateways instead, such as ["10.0.0.0/8"], or "unix" for a Unix socket.',
                id=f"{TAG}.W022",
            )
        ]
    return [
        checks.Error(
            f"RATELIMITER['TRUSTED_PROXIES'] trusts nobody, so each gateway that asks {shown} gets a 403, and rejects "
            "every request.",
            hint='Name the networks of your gateways, such as ["10.0.0.0/8"], or "unix" for a Unix socket.',
            id=f"{TAG}.E010",
        )
    ]
