"""Adds the server process to every response, including rejections."""

import os
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

PROCESS_HEADER = "X-Process-ID"


def name_the_process(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Add the process id to each response."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response[PROCESS_HEADER] = str(os.getpid())
        return response

    return middleware
