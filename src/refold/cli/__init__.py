"""The command line: one file per command, each light to import; heavy rooms are imported where they are used."""
