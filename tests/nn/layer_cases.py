"""Every layer once, small and in float64."""

import torch

from holdfast import nn, parameterizations
from holdfast.nn import (
    LRU,
    RGLRU,
    S4D,
    ContinuousGRU,
    ContinuousRNN,
    DiagonalSSM,
    LinearRNN,
    Mamba,
    Mamba2,
    MinGRU,
    MinLSTM,
    SelectiveSSM,
)

BATCH, STEPS, FEATURES = 3, 9, 3

LAYERS = {
    "DiagonalSSM": (DiagonalSSM, {}),
    "DiagonalSSM discrete": (
        DiagonalSSM,
        {"time": "discrete", "activation": "sigmoid", "parameterization": "softplus"},
    ),
    "DiagonalSSM euler": (DiagonalSSM, {"discretization": "euler", "dt": 0.5, "activation": "identity", "bias": False}),
    "LRU": (LRU, {}),
    "LRU plain": (LRU, {"normalize": False, "parameterization": "tanh", "max_phase": 1.0}),
    "S4D lin": (S4D, {}),
    "S4D inv bilinear": (S4D, {"initialization": "inv", "discretization": "bilinear"}),
    "S4D legs": (S4D, {"initialization": "legs", "parameterization": "best"}),
    "S4D real": (S4D, {"initialization": "real", "parameterization": "softplus"}),
    "SelectiveSSM": (SelectiveSSM, {}),
    "Mamba": (Mamba, {}),
    "Mamba2": (Mamba2, {"head_size": 2}),
    "MinGRU": (MinGRU, {}),
    "MinGRU tanh": (MinGRU, {"activation": "tanh", "parameterization": "exp"}),
    "MinLSTM": (MinLSTM, {}),
    "MinLSTM sigmoid": (MinLSTM, {"activation": "sigmoid"}),
    "RGLRU": (RGLRU, {}),
    "RGLRU heads": (RGLRU, {"heads": 2, "parameterization": "best"}),
    "LinearRNN": (LinearRNN, {"bias": True}),
    "LinearRNN continuous": (LinearRNN, {"time": "continuous", "bias": True, "dt": 0.4}),
    "LinearRNN contraction": (LinearRNN, {"parameterization": "contraction"}),
    "LinearRNN normal": (LinearRNN, {"parameterization": "exp"}),
    "LinearRNN diagonal": (LinearRNN, {"structure": "diagonal", "time": "continuous", "dt": 0.4}),
    "ContinuousRNN": (ContinuousRNN, {}),
    "ContinuousRNN relu": (ContinuousRNN, {"activation": "relu", "parameterization": "direct", "bias": False}),
    "ContinuousRNN diagonal": (ContinuousRNN, {"structure": "diagonal", "activation": "hardtanh"}),
    "ContinuousRNN sigmoid": (ContinuousRNN, {"activation": "sigmoid", "parameterization": "softplus"}),
    "ContinuousRNN linear": (ContinuousRNN, {"activation": "linear"}),
    "ContinuousGRU": (ContinuousGRU, {"dt": 0.5}),
}
# a layer without a line above is tested as it is by default
LAYERS |= {name: (kind, {}) for name, kind in nn.LAYERS.items() if kind not in [known for known, _ in LAYERS.values()]}
CONTINUOUS = [
    name for name, (kind, options) in LAYERS.items() if options.get("time", getattr(kind, "time", "")) != "discrete"
]
CONTINUOUS = [name for name in CONTINUOUS if name not in ("LinearRNN", "LinearRNN contraction", "LinearRNN normal")]

SCALAR = parameterizations.names
PARAMETERIZED = [
    *((DiagonalSSM, name, {}) for name in SCALAR("continuous")),
    *((DiagonalSSM, name, {"time": "discrete"}) for name in SCALAR("discrete")),
    *((LRU, name, {}) for name in SCALAR("discrete")),
    *((S4D, name, {}) for name in SCALAR("continuous")),
    *(
        (SelectiveSSM, name, {}) for name in SCALAR("continuous") if name != "inverse"
    ),  # -1/w ends at -2, A starts at -2
    *((kind, name, {}) for kind in (MinGRU, RGLRU) for name in SCALAR("continuous")),
    *((LinearRNN, name, {}) for name in ("complete", *SCALAR("discrete"))),
    *((LinearRNN, name, {"time": "continuous"}) for name in ("complete", *SCALAR("continuous"))),
    *((ContinuousRNN, name, {}) for name in ("complete", "contraction", *SCALAR("continuous"))),
    *((ContinuousRNN, name, {"structure": "diagonal"}) for name in SCALAR("continuous")),
]


def build(name, *, features=FEATURES, state_size=4, seed=0, **more):
    torch.manual_seed(seed)
    kind, options = LAYERS[name]
    return kind(features, state_size, **options, **more).double()


def sequence(steps=STEPS, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, steps, FEATURES, dtype=torch.float64, generator=generator)
