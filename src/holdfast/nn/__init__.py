"""Recurrent layers, blocks and stacks with stable memory.

`_base.py` holds the contract of a layer, `_call_arguments.py` the checks of what it is called with, `_described.py` what
it says about itself, `system.py` the systems that it can be; a file for each layer follows. They share
`_recurrent_weight.py` (a recurrent weight, dense or diagonal), `_activations.py`, `_discretize.py`, `_kept_coefficients.py`
(coefficients kept between the steps of a stream) and `_precision.py` (half precision); both Mambas share
`_mamba_base.py`, layers whose gates read the input alone `_input_gated.py`. Weights start in
`_initial_weights.py`. `_export_loop.py` is what exporters see of a layer, `_onnx_copy.py` makes a copy for ONNX,
`_pretrained.py` writes models into folders with a `_model_card.py` and `_loading.py` builds them around the weights of one.
`_from_weights.py` builds layers from given weights, `_views/` finds the recurrences of any model.
`_blocks.py`, `_models.py` and `_language.py` stack layers, `_drop_in.py` puts them where torch.nn.LSTM stood,
with its states by `_lstm_states.py`, and `_inside.py` does so inside another library's object;
`_acceleration.py` puts the kernels into transformers' models, by `_mixer_classes.py` and `_mixer_functions.py`.
"""

from holdfast._factories import members_of
from holdfast.nn._acceleration import Acceleration, accelerate
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._blocks import GatedBlock, GatedMLP, HyenaBlock, NaiveBlock
from holdfast.nn._continuous_gru import ContinuousGRU
from holdfast.nn._continuous_rnn import ContinuousRNN
from holdfast.nn._diagonal_ssm import DiagonalSSM
from holdfast.nn._drop_in import RecurrentStack
from holdfast.nn._inside import network_inside, swap_recurrences
from holdfast.nn._language import LanguageModel
from holdfast.nn._linear_rnn import LinearRNN
from holdfast.nn._lru import LRU
from holdfast.nn._mamba import Mamba
from holdfast.nn._mamba2 import Mamba2
from holdfast.nn._min_gru import MinGRU
from holdfast.nn._min_lstm import MinLSTM
from holdfast.nn._models import SequenceClassifier, SequenceModel
from holdfast.nn._onnx_copy import exportable
from holdfast.nn._recurrent_weight import RecurrentWeight
from holdfast.nn._rg_lru import RGLRU
from holdfast.nn._s4d import S4D
from holdfast.nn._selective_ssm import SelectiveSSM
from holdfast.nn._views import recurrences
from holdfast.nn._views.step_function import StepFunction
from holdfast.nn._views.view import RecurrenceView

# every recurrent layer by its name; a further one is found by its file
LAYERS: dict[str, type[AbstractRecurrent]] = {
    layer.__name__: layer
    for layer in (
        DiagonalSSM,
        LinearRNN,
        LRU,
        S4D,
        SelectiveSSM,
        Mamba,
        Mamba2,
        MinGRU,
        MinLSTM,
        RGLRU,
        ContinuousRNN,
        ContinuousGRU,
    )
}
LAYERS |= {layer.__name__: layer for layer in members_of(__name__, AbstractRecurrent)}

__all__ = [
    "LAYERS",
    "LRU",
    "RGLRU",
    "S4D",
    "AbstractRecurrent",
    "Acceleration",
    "ContinuousGRU",
    "ContinuousRNN",
    "DiagonalSSM",
    "GatedBlock",
    "GatedMLP",
    "HyenaBlock",
    "LanguageModel",
    "LinearRNN",
    "Mamba",
    "Mamba2",
    "MinGRU",
    "MinLSTM",
    "NaiveBlock",
    "RecurrenceView",
    "RecurrentStack",
    "RecurrentWeight",
    "SelectiveSSM",
    "SequenceClassifier",
    "SequenceModel",
    "StepFunction",
    "accelerate",
    "exportable",
    "network_inside",
    "recurrences",
    "swap_recurrences",
]
