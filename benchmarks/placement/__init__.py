"""Placement on shared, unlike GPUs: openb at saturation, PAI over a day, windows, and who is how fast."""
