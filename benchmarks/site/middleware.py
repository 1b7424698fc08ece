"""Sets the user without the usual queries, which are not measured here, and the URLs to search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

from .settings import ON_LOOP


@sync_and_async_middleware
def signed_in(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Use the header X-User as the id of the user, and make the search for each view take the same time."""
    from .urls import URLS_OF  # imports views, and these the limiters

    def respond(request: HttpRequest) -> Any:
        request.urlconf = URLS_OF[request.path_info]  # type: ignore[assignment]  # URL patterns are valid, too
        set_user(request, request.META.get("HTTP_X_USER"))
        return get_response(request)

    async def async_respond(request: HttpRequest) -> Any:
        request.urlconf = URLS_OF[request.path_info]  # type: ignore[assignment]  # URL patterns are valid, too
        set_user(request, request.META.get("HTTP_X_USER"))
        return await get_response(request)

    return async_respond if iscoroutinefunction(get_response) else respond


def set_user(request: HttpRequest, number: str | None) -> None:
    """Sign in the user with this id; `None` = leave it to Django's own middleware, or anonymous without it."""
    if number is None and not ON_LOOP:
        return
    user = AnonymousUser() if number is None else User(pk=int(number), username="someone")

    async def auser() -> User | AnonymousUser:
        return user

    request.user = user
    request.auser = auser
