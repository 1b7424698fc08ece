"""Other limiters, each with Redis as its own documentation recommends, with one limit by address.

A module has contestants, and some have `limited`: a view with this limit, as in the peer's documentation, or, if the
peer does not support Django, with the least code that a project would need.
"""
