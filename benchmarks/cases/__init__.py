"""The cases of `benchmarks.speed`, one file each: `rows(quick)` measures and gives lines of the table."""
