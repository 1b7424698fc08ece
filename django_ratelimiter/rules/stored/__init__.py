"""Rules in the database: compiled, versioned, read."""
