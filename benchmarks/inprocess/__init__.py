"""A whole Django request in one process, with a real Redis: the number of Python calls, and the time."""
