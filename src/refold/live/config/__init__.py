"""`refold.yaml`: nouns, how they are read, and the commented file to begin with."""
