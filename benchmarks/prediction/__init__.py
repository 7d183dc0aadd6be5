"""How well durations are foreseen, beside simple ways and beside gradient-boosted trees."""
