"""What a daemon keeps: one SQLite file, written by one thread."""
