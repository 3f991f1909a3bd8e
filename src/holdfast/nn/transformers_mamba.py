"""transformers' MambaMixer with our kernels in its place; imported only by `holdfast.accelerate`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.mamba import modeling_mamba

from holdfast.kernels import causal_conv, selective

Mixer: Any = modeling_mamba.MambaMixer


class AcceleratedMambaMixer(Mixer):
    """A MambaMixer whose weights, state dict and answers are the same; whole sequences run by our kernels.

    A module becomes one by its class alone, so that copies, `torch.save` and `save_pretrained` see nothing new.
    """

    def forward(
        self,
        hidden_states: Tensor,
        cache_params: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The mixer's own forward with the convolution and the scan exchanged; a step of one token is left as it is.

        Args:
            hidden_states: inputs (batch, time, features).
            cache_params: the cache of `generate`, or None.
            attention_mask: ones where there are tokens (batch, time), or None.
            **kwargs: what the mixer's own forward takes beside these.
        """
        steps, index = hidden_states.shape[1], self.layer_idx
        if steps == 1 and cache_params is not None and cache_params.get_conv_state(index, state_idx=0) is not None:
            return super().forward(hidden_states, cache_params, attention_mask, **kwargs)
        mask = modeling_mamba.apply_mask_to_padding_states
        u, gate = self.in_proj(mask(hidden_states, attention_mask)).chunk(2, dim=-1)
        if cache_params is not None:
            u = cache_params.update_conv_state(u.mT, index, conv_kernel_size=self.conv_kernel_size).mT
        u, _ = causal_conv(u, self.conv1d.weight.squeeze(1), self.conv1d.bias, silu=True)
        u = mask(u[:, -steps:], attention_mask)
        low, B, C = self.x_proj(u).split([self.time_step_rank, self.ssm_state_size, self.ssm_state_size], dim=-1)
        dt = functional.linear(low, self.dt_proj.weight)
        A = -torch.exp(self.A_log.float())
        y, last = selective(u, dt, A, B, C, self.D, z=gate, dt_bias=self.dt_proj.bias, dt_softplus=True)
        if cache_params is not None:
            cache_params.update_recurrent_state(last, index)
        return self.out_proj(y.to(hidden_states.dtype))
