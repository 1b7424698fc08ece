"""The text of a rules file: a tree of values with their places, from JSON or YAML."""
