"""sb3-contrib's RecurrentPPO with our layers: a policy in whose place of LSTMs stand `RecurrentStack`s."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BackendError
from holdfast.nn import RecurrentStack, swap_recurrences

try:
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
except ImportError as error:
    raise BackendError("sb3-contrib is not installed: pip install 'holdfast[rl]'") from error


class RecurrentStackPolicy(RecurrentActorCriticPolicy):
    """sb3-contrib's policy with another recurrence: `RecurrentPPO(RecurrentStackPolicy, env, policy_kwargs={...})`.

    Everything that "MlpLstmPolicy" takes stays. `lstm_hidden_size` is the number of outputs and of the numbers of a state.
    Where episodes begin inside a sequence, the states are reset there in one pass; sb3-contrib runs its LSTM step by step
    then.

    Args:
        arguments: positional arguments of sb3-contrib's policy.
        layer: the recurrence, as `holdfast.nn.RecurrentStack` names it; those fit whose state has as many numbers for each
            sequence as it has units, such as "lru", "mingru", "rglru" or "gru".
        layer_kwargs: keyword arguments of the layer.
        options: other keyword arguments of sb3-contrib's policy.
    """

    optimizer: torch.optim.Optimizer

    def __init__(
        self, *arguments: Any, layer: str = "lru", layer_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        swap_recurrences(self, layer, **(layer_kwargs or {}))
        rate = self.optimizer.param_groups[0]["lr"]
        # sb3-contrib made it for the LSTMs, which are gone
        self.optimizer = self.optimizer_class(self.parameters(), lr=rate, **self.optimizer_kwargs)

    @staticmethod
    def _process_sequence(
        features: Tensor, lstm_states: tuple[Tensor, Tensor], episode_starts: Tensor, lstm: nn.Module
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs (sequences steps, outputs) and states, the states reset where an episode begins."""
        assert isinstance(lstm, RecurrentStack)
        rows = lstm_states[0].shape[1]
        x = features.reshape(rows, -1, lstm.input_size).transpose(0, 1)
        starts = episode_starts.reshape(rows, -1).transpose(0, 1).to(torch.bool)
        if len(x) == 1:  # one step of every environment, while experience is gathered
            keep = (~starts).to(x.dtype).unsqueeze(-1)
            return lstm.step(x[0], tuple(keep * part for part in lstm_states))
        y, states = lstm(x, lstm_states, resets=starts)
        return y.transpose(0, 1).flatten(end_dim=1), states
