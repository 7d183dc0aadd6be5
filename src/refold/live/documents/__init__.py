"""Documents that people write, of which every part knows its line."""
