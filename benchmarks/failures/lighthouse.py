"""The lighthouse of torchft, which reads its options from the command line of a script."""

from torchft._torchft import lighthouse_main  # type: ignore[import-not-found]

lighthouse_main()
