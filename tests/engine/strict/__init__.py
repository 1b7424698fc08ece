"""A server that is stricter than Redis, for what is said of servers that cannot be run here.

It runs the scripts in Lua 5.1 or 5.4, lets them touch no key that was not declared, may reject TIME in them, sends a
float as a text, and undoes nothing of a script that ends with an error.
"""

from .server import Rules, StrictServer

__all__ = ["Rules", "StrictServer"]
