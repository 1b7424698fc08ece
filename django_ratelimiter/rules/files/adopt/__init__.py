"""A rules file that does what other limiters of the project do now."""
