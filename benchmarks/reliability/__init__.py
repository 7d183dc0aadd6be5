"""How reliable the daemon is: killed hundreds of times, and asked by many at once."""
