"""Placement on shared, heterogeneous GPUs: openb at saturation, PAI over a day, windows of tasks, and speed."""
