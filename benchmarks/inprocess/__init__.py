"""A whole Django request within one process, on a real Redis: how many Python calls it makes, and how long it takes."""
