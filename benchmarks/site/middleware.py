"""Who is signed in, without the queries that nobody here is measured by, and where views are found."""

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
    """Take the header X-User for the id of the user, and let each view be found as soon as every other."""
    from .urls import URLS_OF  # which imports views, and these what stands before them

    def respond(request: HttpRequest) -> Any:
        request.urlconf = URLS_OF[request.path_info]  # type: ignore[assignment]  # patterns will do
        set_user(request, request.META.get("HTTP_X_USER"))
        return get_response(request)

    async def async_respond(request: HttpRequest) -> Any:
        request.urlconf = URLS_OF[request.path_info]  # type: ignore[assignment]  # patterns will do
        set_user(request, request.META.get("HTTP_X_USER"))
        return await get_response(request)

    return async_respond if iscoroutinefunction(get_response) else respond


def set_user(request: HttpRequest, number: str | None) -> None:
    """Sign the user of this id in; `None` = leave it to Django's own middleware, or nobody where there is none."""
    if number is None and not ON_LOOP:
        return
    user = AnonymousUser() if number is None else User(pk=int(number), username="someone")

    async def auser() -> User | AnonymousUser:
        return user

    request.user = user
    request.auser = auser
