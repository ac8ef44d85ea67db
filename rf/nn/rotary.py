"""Self-attention with rotary positions: queries and keys are rotated by their positions, so that their products depend
on distances.
"""

from __future__ import annotations

from rf._core import Tensor
from rf._dim import Dim
from rf.nn.attention import (
    CausalSelfAttention,
    CausalSelfAttentionState,
    SelfAttention,
    append_to_state,
    starts_sequence,
)
from rf.nn.pos_enc import Offset, sinusoidal_positional_encoding
from rf.ops import attention as ops

__all__ = ["RotaryPosCausalSelfAttention", "RotaryPosSelfAttention"]


def _rotate(x: Tensor, axis: Dim, feat_dim: Dim, offset: Offset = 0) -> Tensor:
    """Rotate the frames along `axis` by the angles position * 10000^(-2 i / feat)."""
    base = 1e4 ** (1 - 2 / feat_dim.get_dim_value())  # the lowest frequency of sinusoidal encodings is 1 / base
    encoding = sinusoidal_positional_encoding(
        spatial_dim=axis, feat_dim=feat_dim, offset=offset, base=base, device=x.device, _backend=x.backend
    )
    return ops.rope(x, encoding, feat_dim)


class RotaryPosSelfAttention(SelfAttention):
    """`SelfAttention` with rotary positions (Su et al. 2021, arXiv:2104.09864); neighboring channels (2i, 2i+1) are one
    pair.
    """

    def __call__(self, source: Tensor, *, axis: Dim) -> Tensor:
        """
        :param source: {..., axis, in}.
        :param axis: over which to attend.
        """
        q, k, v = self.forward_qkv(ops.clean(source, (axis,)))
        q, k = (_rotate(x, axis, self.key_dim_per_head) for x in (q, k))
        return self.attention(q, k, v, kv_axis=axis)


class RotaryPosCausalSelfAttention(CausalSelfAttention):
    """`CausalSelfAttention` with rotary positions. The state has the keys before they are rotated."""

    def __call__(
        self, source: Tensor, axis: Dim, *, state: CausalSelfAttentionState | None = None
    ) -> tuple[Tensor, CausalSelfAttentionState]:
        """Arguments and result as for `CausalSelfAttention`."""
        q, k, v = self.forward_qkv(ops.clean(source, (axis,)))
        feat = self.key_dim_per_head
        if starts_sequence(axis, state):
            new_state = CausalSelfAttentionState(k_accum=k, v_accum=v, accum_axis=axis)
            out = self._attention(_rotate(q, axis, feat), _rotate(k, axis, feat), v, axis, causal=axis)
            return out, new_state
        assert state is not None
        before = size_of(state.accum_axis)
        k, v, history, new_state = append_to_state(k, v, axis, state)
        q, k = _rotate(q, axis, feat, before), _rotate(k, history, feat)
        return self.attention(q, k, v, kv_axis=history), new_state


def size_of(dim: Dim) -> int | Tensor:
    """The number of frames: an int where it is the same for all sequences, else a Tensor."""
    return dim.get_size_tensor() if dim.need_masking() else dim.get_dim_value()
