"""Tiered rate limits for Django. What views and settings import is in this package's modules."""

#: For `method` of `@ratelimit`: every method.
ALL = (None,)
#: For `method` of `@ratelimit`: the methods that change something.
UNSAFE = ["DELETE", "PATCH", "POST", "PUT"]
