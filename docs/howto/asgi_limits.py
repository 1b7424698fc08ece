"""An ASGI middleware that decides requests by the rules of the limiter. See recipes.md."""

import asyncio
from io import BytesIO

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest

from django_ratelimiter import limiter
from django_ratelimiter.headers import rejection_response, response_fields


class RateLimited:
    """Decides the HTTP requests of an ASGI application. rules_of: rules of this scope apply as well."""

    def __init__(self, application, rules_of=None):
        self.application, self.rules_of = application, rules_of

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.application(scope, receive, send)
        request = ASGIRequest(scope, BytesIO())  # without its body
        decision = await limiter.acheck(request, scope=self.rules_of)
        if not decision.allowed:
            return await respond(send, await sync_to_async(rejection_response)(request, decision))
        await asyncio.sleep(decision.delay)
        fields = encoded(response_fields(decision))

        async def send_with_fields(message):
            if message["type"] == "http.response.start":
                message = message | {"headers": [*message.get("headers", ()), *fields]}
            await send(message)

        try:
            await self.application(scope, receive, send_with_fields)
        finally:
            await sync_to_async(request.close)()  # ends what counts as in progress


async def respond(send, response):
    headers = encoded(response.items())
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})


def encoded(fields):
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in dict(fields).items()]
