"""Shared fixtures of the training tests."""

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True, scope="session")
def _use_one_thread() -> None:
    """Use one thread: small models are slower on many threads, especially when other tests run in parallel."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
