"""Rules files in the admin: which rules belong to one, and its download and upload."""
