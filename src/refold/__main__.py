"""`python -m refold` is the `refold` command."""

from refold.cli import main

main()
