"""The whole network: front end, encoder, attention, decoder and the CTC head that trains beside them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .attention import Mocha
from .config import EncoderConfig, ModelConfig
from .decoder import Decoder
from .encoders.frontend import Frontend, FrontendState
from .encoders.highway_bilstm import HighwayBiLSTM
from .encoders.star_transformer import StreamingStarTransformer


class EncoderState(NamedTuple):
    frontend: FrontendState
    context: Any  # of the streaming encoder, HighwayBiLSTMState or StreamingStarTransformerState


def build_encoder(config: EncoderConfig) -> HighwayBiLSTM | StreamingStarTransformer:
    """The streaming encoder that `encoder.kind` names."""
    if config.kind == "star_transformer":
        return StreamingStarTransformer(
            config.width,
            config.num_layers,
            config.num_heads,
            relay_memory=config.relay_memory,
            dropout=config.dropout,
            final_norm=True,
        )
    return HighwayBiLSTM(config.width, config.hidden, config.num_layers, config.lookahead, config.dropout)


class Encoder(nn.Module):
    """Log-mel frames to encoder frames with context, eight to one. (B, T, M) -> (B, ceil(T / 8), D)"""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.frontend = Frontend(config.features.num_mels, config.encoder.width)
        self.context = build_encoder(config.encoder)

    def initial_state(self, batch: int) -> EncoderState:
        return EncoderState(self.frontend.initial_state(batch), self.context.initial_state(batch))

    def forward(self, features: Tensor, lengths: Tensor, chunk: int | None = None) -> tuple[Tensor, Tensor]:
        """Whole utterances: the encoder frames and how many each row has. `chunk` None hears the whole utterance."""
        frames = self.frontend(features, lengths)
        lengths = self.frontend.num_frames(lengths)
        return self.context(frames, lengths, chunk), lengths

    def step(self, features: Tensor, state: EncoderState, chunk: int | None = None) -> tuple[Tensor, EncoderState]:
        """Hears the next (B, T, M) features, any number; returns the frames whose chunk is complete."""
        frames, frontend = self.frontend.step(features, state.frontend)
        frames, context = self.context.step(frames, state.context, chunk)
        return frames, EncoderState(frontend, context)

    def finish(self, state: EncoderState, chunk: int | None = None) -> Tensor:
        """The frames that were waiting for more audio."""
        last = self.frontend.finish(state.frontend)
        frames, context = self.context.step(last, state.context, chunk)
        return torch.cat([frames, self.context.finish(context, chunk)], 1)  # type: ignore[arg-type]


class MochaModel(nn.Module):
    """All weights of a recogniser."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        width = config.encoder.width
        self.encoder = Encoder(config)
        self.attention = Mocha(
            width,
            config.decoder.width,
            config.attention.width,
            config.attention.window,
            config.attention.init_r,
            config.attention.energy,
        )
        self.decoder = Decoder(
            config.vocab_size, config.decoder.embedding, config.decoder.width, width, config.decoder.dropout
        )
        self.ctc = nn.Linear(width, config.vocab_size)

    def by_columns(self) -> "MochaModel":
        """Lays out the matrices of the LSTMs by columns: the few frames that a stream has at a time go faster so."""
        for lstm in self.modules():
            if isinstance(lstm, nn.LSTM):
                for weight in lstm.parameters():
                    if weight.dim() == 2:
                        weight.data = weight.data.T.contiguous().T
        return self
