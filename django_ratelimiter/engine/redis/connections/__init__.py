"""Connections to one server: pools, transports, TLS."""
