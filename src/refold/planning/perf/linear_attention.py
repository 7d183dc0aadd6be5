"""Linear attention: layers that keep a state of fixed size per head instead of the keys and values of all tokens.

State-space models (Mamba-2, Dao and Gu 2024) and gated delta networks (Yang et al. 2024) have the same parts:
projections to values, their gates, keys and queries; a short convolution over tokens; a scan over the sequence, in
chunks; a normalisation, and an output projection. What state-space models call B, C, x and z are keys, queries, values
and gates here, and a group is a key head.
"""

from __future__ import annotations

import msgspec

from refold.errors import BadValue

SCAN_PASSES = 17.5
"""Memory passes over the values of a token in the forward pass of a scan, besides states. With the efficiency of
attention for its products, this gives the published times of a gated delta network with 96 heads of 128 and 8,192
tokens (flash-linear-attention): 1.89 ms on an H100 and 3.20 ms on an H20, which has a seventh of its peak. Mamba-2 is
assumed to have as many."""

DELTA_RULE_STATE_BYTES, STATE_SPACE_STATE_BYTES = 4.0, 16.0
"""Memory traffic per element of the state before each chunk. Gated delta networks write and read it in half precision;
kernels of Mamba-2 write what a chunk adds, read that and write the state, and read that again, in single precision."""


class LinearAttention(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The linear attention of `layers` layers: `heads` with values of `head_size`, `key_heads` with keys of `key_size`.

    The state of a head has `key_size` × `head_size` elements. `kernel` is the width of the convolution, `chunk` the
    number of tokens that kernels process at once. `delta_rule`: a token replaces what the state has under its key
    (gated delta networks), instead of adding to it (Mamba-2).
    """

    layers: int
    heads: int
    head_size: int
    key_heads: int
    key_size: int
    kernel: int = 4
    chunk: int = 128
    delta_rule: bool = False

    def __post_init__(self) -> None:
        for field in ("layers", "heads", "head_size", "key_heads", "key_size", "kernel", "chunk"):
            if not 1 <= getattr(self, field) <= 1e9:
                raise BadValue(f"linear attention: {field} is {getattr(self, field)}, expected a number ≥ 1")
        if self.heads % self.key_heads:
            raise BadValue(f"linear attention: {self.heads} heads are not divisible by {self.key_heads} key_heads")

    @property
    def value_width(self) -> int:
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_size

    @property
    def projected_width(self) -> int:
        """Width of what is computed from the input of a layer: values, gates, keys, queries, and step sizes."""
        return 2 * (self.value_width + self.key_width) + (2 if self.delta_rule else 1) * self.heads

    @property
    def inner_width(self) -> int:
        """Number of activation elements inside a layer, per token: the above, results of the scan, and normalised."""
        return 4 * self.value_width + 2 * self.key_width

    def scan_bytes(self) -> float:
        """Return the memory traffic of a scan in a forward pass, per token."""
        of_state = DELTA_RULE_STATE_BYTES if self.delta_rule else STATE_SPACE_STATE_BYTES
        return self.value_width * (2.0 * SCAN_PASSES + of_state * self.key_size / self.chunk)

    def parameters(self, hidden: int) -> int:
        """Return the weights of a layer: projections, convolution, decay and its step, skip, normalisation."""
        convolution = (self.value_width + 2 * self.key_width) * (self.kernel + (0 if self.delta_rule else 1))
        scan = 2 * self.heads + self.head_size if self.delta_rule else 3 * self.heads + self.value_width
        return hidden * (self.projected_width + self.value_width) + convolution + scan

    def scan_flops(self) -> float:
        """Return the FLOPs of a scan in a forward pass, per token: products within chunks, and with the states.

        Mamba-2: queries × keys of each group, scores × values, the state that a chunk adds, and the output of the state
        before it. The delta rule has queries × keys for each head, and four more (Yang et al. 2024): keys × keys, the
        inverse of that with keys and with values, and what the state has under the keys.
        """
        of_heads = self.heads * self.chunk * self.head_size + 2 * self.value_width * self.key_size
        if not self.delta_rule:
            return 2.0 * (self.key_width * self.chunk + of_heads)
        more = self.value_width * self.key_size + self.heads * self.chunk * (3 * self.key_size + self.head_size)
        return 2.0 * (of_heads + more)
