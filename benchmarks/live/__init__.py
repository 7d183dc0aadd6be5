"""How fast the live scheduler is: from a submission to its process, on disk, at rest, and with a long past."""
