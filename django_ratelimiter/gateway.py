"""The entry point for gateways: nginx, Traefik, Caddy or Envoy calls this view for a request to another server.

The view answers 200, or as the limiter rejects requests: 429, 503 or 403. Only a trusted proxy (TRUSTED_PROXIES) may
call it. Its fields X-Forwarded-Method, X-Forwarded-Uri and X-Forwarded-For describe the request to decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from asgiref.sync import sync_to_async
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_cache_control
from django.utils.translation import gettext as _

from .conf import settings
from .databases import in_own_transactions
from .decision import NOTHING_TO_DECIDE, Decision
from .engine.coroutines import run_sync
from .headers.fields import write_fields
from .headers.responses import may_wait, rejection_response
from .identity import meta_name
from .identity.proxies import is_trusted_peer
from .identity.users import UserByKey
from .limiter import refunds
from .limiter.charges import limit_request
from .limiter.io import IO, LOOP, THREAD
from .limiter.path import decide
from .middleware import ASKED_BY_GATEWAYS

__all__ = ["STATUS_FIELD", "aview", "view"]

#: The response field with the real status of a rejection if `rejected_status` replaces it.
STATUS_FIELD: Final = "X-RateLimit-Status"

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
#: The start of the target if a caller sends an absolute URL.
_ORIGIN: Final = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
#: Some servers treat both as the end of a segment, others do not.
_SLASH: Final = re.compile(r"[/\\]")
#: Fields about the gateway's own request, not about the caller's: it has no body, and another path.
_OF_THE_QUESTION: Final = ("CONTENT_LENGTH", "CONTENT_TYPE", "SCRIPT_URL", "REDIRECT_URL")

Response = TypeVar("Response", bound=HttpResponseBase)


class GatewayOptions(NamedTuple):
    """The arguments of `view`."""

    scope: str | None
    rejected_status: int | None
    user_header: str | None
    fold_paths: bool = False


class GatewayError(Exception):
    """A request of a gateway that cannot be decided. status: 403 for an untrusted peer, 400 if something is missing.

    of_caller: the caller's request is invalid, not the gateway's fields.
    """

    def __init__(self, status: int, text: str, *, of_caller: bool = False) -> None:
        super().__init__(text)
        self.status, self.of_caller = status, of_caller


class ForwardedRequest(WSGIRequest):
    """A request to another server, as a gateway describes it. No view of this site handles it."""

    def __init__(self, environ: dict[str, Any]) -> None:
        super().__init__(environ)
        self.path: str = self.path_info  # without the prefix of FORCE_SCRIPT_NAME
        self.resolver_match = None


def view(
    *,
    scope: str | None = None,
    rejected_status: int | None = None,
    user_header: str | None = None,
    fold_paths: bool = False,
) -> Callable[..., HttpResponseBase]:
    """Return a view for `urls.py` that decides the request which a gateway describes.

    Method and path come from X-Forwarded-Method and X-Forwarded-Uri. If the route captures `path`, they are the
    method of the gateway's request and the captured path. scope: also apply the rules of this scope.
    rejected_status: the status of each rejection, and of a path that servers read in different ways, for gateways
    that know only one; the real one is then in the field X-RateLimit-Status. `None` = the real one. user_header:
    the field with the primary key of the user, which the gateway must set or remove in each request; `None` = no
    request has a user. fold_paths: rules also match other spellings of a path, for servers that ignore its case, a
    final slash and `;…`. Raises ValueError for an invalid status or field name.
    """
    options = _checked(GatewayOptions(scope, rejected_status, user_header, fold_paths))

    def decide_for_gateway(request: HttpRequest, path: str | None = None) -> HttpResponseBase:
        return run_sync(_respond(THREAD, request, path, options))

    return _marked(decide_for_gateway, options)


def aview(
    *,
    scope: str | None = None,
    rejected_status: int | None = None,
    user_header: str | None = None,
    fold_paths: bool = False,
) -> Callable[..., Any]:
    """Return the same view as a coroutine function, for sites under ASGI. It blocks no thread."""
    options = _checked(GatewayOptions(scope, rejected_status, user_header, fold_paths))

    async def decide_for_gateway(request: HttpRequest, path: str | None = None) -> HttpResponseBase:
        return await _respond(LOOP, request, path, options)

    return _marked(decide_for_gateway, options)


async def _respond(io: IO, request: HttpRequest, path: str | None, options: GatewayOptions) -> HttpResponseBase:
    """Return the response to a gateway, for the request that it describes."""
    try:
        forwarded = _forwarded_request(request, path, options)
    except GatewayError as error:
        response = HttpResponse(f"{error}\n", status=error.status, content_type="text/plain; charset=utf-8")
        return _uncached(_with_one_status(response, options) if error.of_caller else response)
    exempt = settings.EXEMPT_PATHS  # only these: urls.py says nothing of other servers
    if exempt is not None and forwarded.path_info.startswith(exempt):
        return _passing(forwarded)
    max_delay = None if io is LOOP else "rule"
    try:
        for spelling in _spellings(forwarded.path_info, options):
            forwarded.path_info = spelling
            decision = await decide(io, limit_request(forwarded, options.scope, None, max_delay))
            if decision.delay:
                await io.sleep(decision.delay)
            if not decision.allowed:
                make = sync_to_async(_rejection) if io is LOOP and may_wait(forwarded) else None
                return await make(forwarded, decision, options) if make else _rejection(forwarded, decision, options)
        return _passing(forwarded, decision)
    finally:  # the end of the other server's response is not known here
        await refunds.release_all(io, forwarded)


def _checked(options: GatewayOptions) -> GatewayOptions:
    if not isinstance(options.scope, str | None):
        raise ValueError(f"scope: must be a text, not {options.scope!r}.")
    if options.rejected_status is not None and options.rejected_status not in range(400, 600):
        raise ValueError(f"rejected_status: must be an error, such as 403, not {options.rejected_status!r}.")
    if options.user_header is not None and not re.fullmatch(r"[A-Za-z0-9-]+", options.user_header):
        raise ValueError(f"user_header: must be the name of a request header, not {options.user_header!r}.")
    return options


def _marked(decide: Callable[..., Any], options: GatewayOptions) -> Callable[..., Any]:
    """Mark the view for Django and our middleware: it needs no CSRF token and no login, and is not limited itself."""
    setattr(decide, ASKED_BY_GATEWAYS, options)
    decide.csrf_exempt = True  # type: ignore[attr-defined]
    decide.login_required = False  # type: ignore[attr-defined]
    if options.scope:
        decide.ratelimit_scopes = (options.scope,)  # type: ignore[attr-defined]
    return in_own_transactions(decide)  # a delay must not occupy a connection, and a coroutine may have none


def _spellings(path: str, options: GatewayOptions) -> tuple[str, ...]:
    """Return the paths to compare with rules, each once: no rule is decided twice for a request."""
    if not options.fold_paths:
        return (path,)
    folded = path.lower().rstrip("/")
    return tuple(dict.fromkeys([path, folded or "/", f"{folded}/"]))


def _forwarded_request(request: HttpRequest, path: str | None, options: GatewayOptions) -> ForwardedRequest:
    """Return the request that the gateway describes. Raises GatewayError if it is untrusted or a field is missing."""
    if not is_trusted_peer(request):
        peer = request.META.get("REMOTE_ADDR") or "unix"
        text = _("%(peer)s is not a trusted proxy: RATELIMITER['TRUSTED_PROXIES'] does not name it.") % {"peer": peer}
        raise GatewayError(403, text)
    meta = {name: value for name, value in request.META.items() if name not in _OF_THE_QUESTION}
    forwarded = ForwardedRequest(_environ(meta, request.method or "", path, options))
    user = meta.get(meta_name(options.user_header), "").strip() if options.user_header else ""
    if user:
        forwarded.user = UserByKey(user)  # type: ignore[assignment]
    return forwarded


def _environ(meta: dict[str, Any], method: str, path: str | None, options: GatewayOptions) -> dict[str, Any]:
    """Return the WSGI environment of the request that these fields describe. Raises GatewayError.

    method, path: of the gateway's own request, used if its route captures a path; `None` = it does not.
    """
    if path is None:
        method, (path, query) = meta.get("HTTP_X_FORWARDED_METHOD", ""), _target(meta.get("HTTP_X_FORWARDED_URI", ""))
    else:
        query = meta.get("QUERY_STRING", "")
        path = path.encode("utf-8", "surrogateescape").decode("latin-1")
        if any(map(_may_be_dots, path.split("/"))):  # the caller may have sent "..%2f"
            raise _ambiguous()
    if not _TOKEN.fullmatch(method):
        raise _lacking("X-Forwarded-Method")
    if not path.startswith("/"):
        raise _lacking("X-Forwarded-Uri")
    if options.fold_paths:
        path = "/".join([part.partition(";")[0] for part in path.replace("\\", "/").split("/")])
    elif ";" in path or "\\" in path:
        text = _("The path contains “;” or “\\”, which servers read in different ways.")
        raise GatewayError(400, text, of_caller=True)
    _check_address(meta)
    return {
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        **meta,
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": _resolved(path),
        "QUERY_STRING": query,
        "wsgi.input": BytesIO(),
    }


def _target(uri: str) -> tuple[str, str]:
    """Return path and query of a request target, such as "/api/?page=2", as in WSGI; "" if it has no path.

    Raises GatewayError for a path that servers read in different ways: a rule must not apply to only one of them.
    """
    origin = _ORIGIN.match(uri)
    path, _mark, query = uri[origin.end() if origin else 0 :].partition("#")[0].partition("?")
    if origin and not path:
        path = "/"
    segments = [unquote_to_bytes(each.encode("latin-1", "replace")).decode("latin-1") for each in path.split("/")]
    others = [each for each in segments if each not in (".", "..")]
    has_dots = len(others) < len(segments)
    if any(_may_be_dots(each) or (has_dots and _SLASH.search(each)) for each in others):
        raise _ambiguous()
    return "/".join(segments), query


def _may_be_dots(segment: str) -> bool:
    """Return whether a server may read a segment, or a part of it, as dots, such as "..;", or "a/.." after decoding."""
    return any(part.partition(";")[0] in (".", "..") for part in segment.replace("\\", "/").split("/"))


def _ambiguous() -> GatewayError:
    return GatewayError(400, _("The path has dot segments that servers read in different ways."), of_caller=True)


def _resolved(path: str) -> str:
    """Return the path as gateways normalize it: without "//", "/./" and "/../".

    Raises GatewayError for "//../": some servers remove the empty segment, others the segment before it.
    """
    parts: list[str] = []
    for part in path.split("/")[1:]:
        if part == "..":
            if parts[-1:] == [""]:
                raise _ambiguous()
            del parts[-1:]
        elif part != ".":
            parts.append(part)
    named = "/".join(filter(None, parts))
    is_folder = named and path.rpartition("/")[2] in ("", ".", "..")
    return f"/{named}{'/' if is_folder else ''}"


def _check_address(meta: dict[str, Any]) -> None:
    """Check that the gateway names the caller. Otherwise all callers would share the gateway's address."""
    field = settings.TRUSTED_PROXIES.field
    if field is None:  # then X-Forwarded-For is read if it is present, even if it is empty
        field = "forwarded" if "HTTP_X_FORWARDED_FOR" not in meta and "HTTP_FORWARDED" in meta else "x-forwarded-for"
    if not meta.get(meta_name(field)):
        raise _lacking(field.title())


def _lacking(field: str) -> GatewayError:
    return GatewayError(400, _("The request header %(name)s is missing or wrong.") % {"name": field})


def _passing(forwarded: HttpRequest, decision: Decision = NOTHING_TO_DECIDE) -> HttpResponse:
    """Return the response for an allowed request."""
    response = HttpResponse(content_type="text/plain")
    if decision is not NOTHING_TO_DECIDE:
        write_fields(forwarded, response, decision)
    return _uncached(response)


def _rejection(forwarded: HttpRequest, decision: Decision, options: GatewayOptions) -> HttpResponseBase:
    """Return the response for a rejected request."""
    return _uncached(_with_one_status(rejection_response(forwarded, decision), options))


def _with_one_status(response: Response, options: GatewayOptions) -> Response:
    """Return the response with `rejected_status`, if it is set: for gateways that know only one."""
    if options.rejected_status is not None:
        response.headers[STATUS_FIELD] = str(response.status_code)
        response.status_code = options.rejected_status
    return response


def _uncached(response: Response) -> Response:
    """Return the response with fields that forbid Django's cache and the gateway's to store it."""
    patch_cache_control(response, private=True, no_store=True, max_age=0)
    return response
