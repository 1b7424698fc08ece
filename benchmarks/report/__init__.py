"""Results as tables, and the tables in pages."""
