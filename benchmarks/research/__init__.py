"""Yardsticks for policies: the optimal allocation of the present jobs, and the gap of each decision to it."""
