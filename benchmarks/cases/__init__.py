"""The cases of `benchmarks.speed`, one module each; `rows(quick)` runs a case and returns its table rows."""
