"""Results as tables, and the tables in the pages."""
