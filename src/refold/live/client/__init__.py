"""Who asks a daemon: from Python, and for the commands. Light to import."""
