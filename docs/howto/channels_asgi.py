"""A consumer of Channels that asks the limiter about connections and messages. See recipes.md."""

import asyncio
import json
import os
from io import BytesIO

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
django = get_asgi_application()  # before the imports that need the apps

from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.handlers.asgi import ASGIRequest
from django.urls import path

from django_ratelimiter import limiter
from django_ratelimiter.headers import rejection_response, retry_after


def request_of(scope, method):
    """Return a request that the limiter can decide, with the user whom Channels has found."""
    request = ASGIRequest({**scope, "method": method}, BytesIO())
    if "user" in scope:
        request.user = scope["user"]
    return request


class Chat(AsyncWebsocketConsumer):
    async def connect(self):
        self.request = request_of(self.scope, "GET")
        decision = await limiter.acheck(self.request, scope="chat")
        if decision.allowed:
            await asyncio.sleep(decision.delay)
            await self.accept()
        elif "websocket.http.response" in self.scope.get("extensions", {}):
            await self.respond(await sync_to_async(rejection_response)(self.request, decision))
        else:
            await self.close()  # the client sees a 403

    async def respond(self, response):
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in response.items()]
        start = {"status": response.status_code, "headers": headers}
        await self.base_send({"type": "websocket.http.response.start", **start})
        await self.base_send({"type": "websocket.http.response.body", "body": response.content})

    async def disconnect(self, code):
        await sync_to_async(self.request.close)()  # ends what counts as in progress

    async def receive(self, text_data=None, bytes_data=None):
        decision = await limiter.acheck(request_of(self.scope, "MESSAGE"), scope="chat-message")
        if decision.allowed:
            await asyncio.sleep(decision.delay)
            await self.send(f"You said: {text_data}")
        else:
            await self.send(json.dumps({"error": "Too many messages.", "retry_after": retry_after(decision)}))


consumers = AuthMiddlewareStack(URLRouter([path("chat/", Chat.as_asgi())]))
application = ProtocolTypeRouter({"http": django, "websocket": consumers})
