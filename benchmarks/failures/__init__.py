"""Training on hosts that fail."""
