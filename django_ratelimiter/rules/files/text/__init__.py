"""A rules file as text: a tree of values with their places, in JSON or YAML."""
