"""Projects with other settings and databases than those of the tests, each in a process of its own."""
