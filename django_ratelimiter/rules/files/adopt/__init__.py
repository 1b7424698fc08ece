"""A rules file that replaces the project's current limiters."""
