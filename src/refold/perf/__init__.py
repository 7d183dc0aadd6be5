"""How fast a plan would be and how much memory it takes: nouns, formulas, and fits to what was measured."""
