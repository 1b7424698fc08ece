"""What others offer, each in the set-up on Redis that its own documentation recommends, with one limit by address.

A module gives contestants, and `limited`: a view under this limit, as the peer's documentation has it, or, where it
knows nothing of Django, with the least code that a project would have to write.
"""
