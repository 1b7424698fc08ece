"""Tiered rate limits for Django. The names that views and settings import are in the modules of this package."""

#: For `method` of `@ratelimit`: all methods.
ALL = (None,)
#: For `method` of `@ratelimit`: the methods that change data.
UNSAFE = ["DELETE", "PATCH", "POST", "PUT"]
