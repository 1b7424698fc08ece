"""The contestants of this project: the engine alone, and the whole request path."""
