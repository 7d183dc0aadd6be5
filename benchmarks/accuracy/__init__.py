"""How well the performance model tells what others have measured: published tables, read into one kind of row."""
