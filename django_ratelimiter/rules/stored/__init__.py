"""Rules in the database: compiling, versions, reading."""
