"""Highway layers: a transform that may be bypassed, feature by feature.

Srivastava, Greff and Schmidhuber 2015, "Highway Networks" (1505.00387); for stacks of LSTMs, Zhang et al. 2016,
"Highway Long Short-Term Memory RNNs for Distant Speech Recognition" (1510.08983).
"""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..streaming import length_mask
from .bilstm import BiLSTM

GATE_TYPES = ("generic", "independent", "T_only", "C_only", "none")


class HighwayNetwork(nn.Module):
    """Highway layers around H(U(x)), U a layer of the user's. (..., in_features) -> (..., out_features)

    Each layer gives `act(H(U(x))) * T + carried * C`, gates T and C between 0 and 1 computed from `carried`:

        generic  T, 1 - T      independent  T, C      T_only  T, 1      C_only  1, C      none  1, 1

    In chain mode `carried` is the layer's own input (`x_hw` for the first one) and every layer has gates. With
    `global_highway_input` it is always the gated `x_hw` of the first layer, and the later layers add it as it is.
    Where out_features differs from in_features, the first layer carries a learned linear map of its highway input.

    Args:
        in_features, out_features: widths; out_features None means in_features
        U_layer: a module (copied for each layer) or a function without arguments that makes one; None: identity.
            With several layers it has to accept out_features as well
        U_init_: called with each U, initialises it in place
        H_features: width that U gives and the first H takes; None: in_features; 0: no H
        H_activation: a module or function; None: identity. Applied even where there is no H
        U_dropout, H_dropout: after U, and after the activation

    Raises ConfigError for an unknown gate type and for widths that do not fit.

    >>> layer = HighwayNetwork(8, U_layer=lambda: nn.Linear(8, 8), num_layers=2)
    >>> layer(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        U_layer: nn.Module | Callable[[], nn.Module] | None = None,
        U_init_: Callable[[nn.Module], object] | None = None,
        U_dropout: float = 0.0,
        H_features: int | None = None,
        H_activation: Callable[[Tensor], Tensor] | None = torch.relu,
        H_dropout: float = 0.0,
        gate_type: str = "generic",
        global_highway_input: bool = False,
        num_layers: int = 1,
    ):
        super().__init__()
        out_features = in_features if out_features is None else out_features
        H_features = in_features if H_features is None else H_features
        if gate_type not in GATE_TYPES:
            raise ConfigError(f"gate_type is {gate_type!r}; it has to be one of {', '.join(GATE_TYPES)}")
        if min(in_features, out_features, num_layers) < 1 or H_features < 0:
            raise ConfigError(
                f"in_features {in_features}, out_features {out_features} and num_layers {num_layers} have to be "
                f"at least 1, H_features {H_features} at least 0"
            )
        if U_layer is None and H_features not in (0, in_features):
            raise ConfigError(
                f"H_features is {H_features} but without a U_layer H takes in_features = {in_features}; "
                "leave H_features out or give a U_layer of that width"
            )
        if U_layer is None and H_features == 0 and out_features != in_features:
            raise ConfigError(
                f"in_features is {in_features} and out_features {out_features}, with neither H nor U_layer to go "
                "from one to the other; leave H_features out"
            )
        num_gated = 1 if global_highway_input else num_layers
        gate_inputs = [in_features] + [out_features] * (num_gated - 1)
        uses_transform, uses_carry = (
            gate_type in ("generic", "independent", "T_only"),
            gate_type in ("independent", "C_only"),
        )

        self.gate_type, self.global_highway_input, self.num_layers = gate_type, global_highway_input, num_layers
        self.U = nn.ModuleList(_make(U_layer) for _ in range(num_layers)) if U_layer is not None else None
        affine_inputs = [H_features] + [out_features] * (num_layers - 1)
        self.H = nn.ModuleList(nn.Linear(width, out_features) for width in affine_inputs) if H_features else None
        self.T = nn.ModuleList(_gate(w, out_features, -1.0) for w in gate_inputs) if uses_transform else None
        self.C = nn.ModuleList(_gate(w, out_features, 1.0) for w in gate_inputs) if uses_carry else None
        self.project = nn.Linear(in_features, out_features, bias=False) if out_features != in_features else None
        self.activation = _make(H_activation) if isinstance(H_activation, nn.Module | type) else H_activation
        self.U_dropout, self.H_dropout = nn.Dropout(U_dropout), nn.Dropout(H_dropout)
        if U_init_ is not None and self.U is not None:
            for layer in self.U:
                U_init_(layer)

    def forward(self, x: Tensor, x_hw: Tensor | None = None, *U_args: object, **U_kwargs: object) -> Tensor:
        """x and the highway input x_hw (None: x itself), both (..., in_features). Further arguments go to U."""
        carried = x if x_hw is None else x_hw
        for index in range(self.num_layers):
            transformed = self._transform(index, x, *U_args, **U_kwargs)
            if index > 0 and self.global_highway_input:
                x = transformed + carried
                continue
            transform, carry = self._gates(index, carried)
            if index == 0 and self.project is not None:
                carried = self.project(carried)
            kept = carried * carry
            x = transformed * transform + kept
            carried = kept if self.global_highway_input else x
        return x

    def _transform(self, index: int, x: Tensor, *U_args: object, **U_kwargs: object) -> Tensor:
        if self.U is not None:
            x = self.U_dropout(self.U[index](x, *U_args, **U_kwargs))
        if self.H is not None:
            x = self.H[index](x)
        if self.activation is not None:
            x = self.activation(x)
        return self.H_dropout(x)

    def _gates(self, index: int, carried: Tensor) -> tuple[Tensor | float, Tensor | float]:
        transform = 1.0 if self.T is None else torch.sigmoid(self.T[index](carried))
        if self.gate_type == "generic":
            return transform, 1 - transform
        return transform, 1.0 if self.C is None else torch.sigmoid(self.C[index](carried))


class HighwayBiLSTM(nn.Module):
    """The published highway bidirectional LSTM, offline. (B, S, in_features) -> (B, S, out_features)

    Each highway layer is `convert(y * t + G * (1 - t))`, y the BiLSTM stack over the layer's input z, G an affine
    image of z and t = sigmoid(G). Every highway layer starts from zero states. Results at padding are 0.
    The encoder that streams is `mocha_stream.encoders.highway_bilstm`.

    Args:
        hw_num_layers: highway layers
        lstm_hidden_dim, lstm_num_layers, lstm_dropout: the BiLSTM stack in each of them; dropout between its layers
        init_weight: whether to draw the LSTMs from Xavier's uniform distribution with gain sqrt(init_weight_value),
            biases uniform in +-sqrt(6 / (input width + 1)); False keeps PyTorch's own initial values
        batch_first: whether x comes as (B, S, in_features) or (S, B, in_features); the result is always (B, S, ...)

    Raises ConfigError for sizes below 1.

    >>> layer = HighwayBiLSTM(hw_num_layers=2, lstm_hidden_dim=5, lstm_num_layers=1, in_features=6, out_features=4)
    >>> layer(torch.randn(3, 7, 6), [7, 4, 0]).shape
    torch.Size([3, 7, 4])
    """

    def __init__(
        self,
        hw_num_layers: int,
        lstm_hidden_dim: int,
        lstm_num_layers: int,
        in_features: int,
        out_features: int,
        lstm_dropout: float = 0.0,
        init_weight: bool = True,
        init_weight_value: float = 2.0,
        batch_first: bool = True,
    ):
        super().__init__()
        if min(hw_num_layers, in_features, out_features) < 1 or init_weight_value < 0:
            raise ConfigError(
                f"hw_num_layers {hw_num_layers}, in_features {in_features} and out_features {out_features} have to be "
                f"at least 1, init_weight_value {init_weight_value} at least 0"
            )
        width = 2 * lstm_hidden_dim
        stacks = [BiLSTM(in_features, lstm_hidden_dim, lstm_num_layers, lstm_dropout) for _ in range(hw_num_layers)]
        self.lstm = nn.ModuleList(stacks)
        self.gate = nn.ModuleList(_gate(in_features, width, -1.0) for _ in range(hw_num_layers))
        self.convert = nn.ModuleList(_gate(width, in_features, -1.0) for _ in range(hw_num_layers))
        self.output = nn.Linear(in_features, out_features)
        self.batch_first = batch_first
        if init_weight:
            for lstm in (part for stack in stacks for part in (*stack.ahead, *stack.back)):
                _draw_lstm(lstm, gain=init_weight_value**0.5)

    def forward(self, x: Tensor, lens: Tensor | Sequence[int]) -> Tensor:
        """Reads the first `lens` (B,) frames of every row; lengths may be zero and may all be shorter than S."""
        z = x if self.batch_first else x.transpose(0, 1)
        lengths = torch.as_tensor(lens, device=x.device)
        padding = ~length_mask(lengths, z.shape[1])[..., None]
        z = z.masked_fill(padding, 0)
        for lstm, gate, convert in zip(self.lstm, self.gate, self.convert, strict=True):
            linear = gate(z)
            open_share = torch.sigmoid(linear)
            z = convert(lstm(z, lengths) * open_share + linear * (1 - open_share))
        return self.output(torch.tanh(z)).masked_fill(padding, 0)


def _make(layer: nn.Module | Callable) -> nn.Module:
    """A layer of our own from a module or a factory, that does not write into what it is given."""
    made = copy.deepcopy(layer) if isinstance(layer, nn.Module) else layer()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"U_layer made a {type(made).__name__}; it has to be a module or to make modules")
    for part in made.modules():
        if getattr(part, "inplace", False):
            part.inplace = False  # type: ignore[assignment]
    return made


def _gate(in_features: int, out_features: int, bias: float) -> nn.Linear:
    affine = nn.Linear(in_features, out_features)
    nn.init.constant_(affine.bias, bias)
    return affine


def _draw_lstm(lstm: nn.LSTM, gain: float) -> None:
    bound = (6 / (lstm.input_size + 1)) ** 0.5
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight"):
            nn.init.xavier_uniform_(parameter, gain)
        else:
            nn.init.uniform_(parameter, -bound, bound)
