"""How fast and how exactly training jobs change shape."""
