"""The published building blocks, exact and padding-invariant; users build their own encoders and heads from them."""

from .bilstm import BiLSTM
from .char_embedding import CharEmbeddingCNN, CharEmbeddingRNN
from .highway import HighwayBiLSTM, HighwayNetwork
from .masking import Masking
from .mocha_decoder import MochaDecoder

__all__ = [
    "BiLSTM",
    "CharEmbeddingCNN",
    "CharEmbeddingRNN",
    "HighwayBiLSTM",
    "HighwayNetwork",
    "Masking",
    "MochaDecoder",
]
