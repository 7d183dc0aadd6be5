"""For tests of your own policies, back ends and trace readers: small makers, and contracts to subclass."""

from refold.testing.makers import make_cluster, make_job

__all__ = ["make_cluster", "make_job"]
