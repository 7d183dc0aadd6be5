"""Tools for testing policies, back ends and trace readers: factories, an audit, and contract suites to subclass."""

import sys

import lazy_loader

if "pytest" in sys.modules:  # failures in contract suites then show the compared values, as those in test files do
    for suite in ("backend_contract", "policy_contract", "trace_contract"):
        sys.modules["pytest"].register_assert_rewrite(f"{__name__}.{suite}")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
