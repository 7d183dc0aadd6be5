"""What runs real training steps: models made from their shapes, steps under a plan, and what they take.

Only `profiling` can be imported where PyTorch is not installed.
"""
