"""One benchmark of `refold` on all kinds of workloads, with a target for each."""
