"""What the tests of training share."""

from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Toy models are slower on many threads than on one, above all where other tests run beside them."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
