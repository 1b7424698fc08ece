"""Rules as code: tiers, rules and access entries in a file, compared with the database and applied to it."""
