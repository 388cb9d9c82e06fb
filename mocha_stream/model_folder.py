"""A model on disk: a folder of `config.toml`, `model.safetensors`, `tokenizer.model` and `README.md`.

Nothing in it is ever unpickled. Weights may be float16 or int8 on disk; they are float32 in memory. An int8 matrix
`NAME` has its steps beside it, `NAME.scale`: one float32 for each row, whose largest weight is 127 of them.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .config import FORMAT_VERSION, ModelConfig, from_dict, read_toml, to_toml
from .errors import ConfigError, ModelError
from .model import MochaModel
from .tokenizer import Tokenizer

FILES = ("config.toml", "model.safetensors", "tokenizer.model")
STATISTICS = ("encoder.frontend.mean", "encoder.frontend.deviation")
SCALE = ".scale"


def save_model(model: MochaModel, tokenizer: Tokenizer, folder: Path, card: str, dtype: torch.dtype) -> None:
    """Writes the folder; `card` is the text of its README.md.

    Args:
        dtype: of the weights on disk: torch.float32, float16 (half the size) or int8 (a quarter)
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f"format_version = {FORMAT_VERSION}\n{to_toml(model.config)}", encoding="utf-8")
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.cpu().float().contiguous()
        if dtype == torch.int8 and tensor.dim() > 1:
            weights[name], weights[name + SCALE] = _quantise(tensor)
        else:  # vectors are a small part, and the statistics of the features reach far
            weights[name] = tensor.half() if dtype == torch.float16 and name not in STATISTICS else tensor
    save_file(weights, folder / "model.safetensors")
    (folder / "tokenizer.model").write_bytes(tokenizer.serialized)
    (folder / "README.md").write_text(card, encoding="utf-8")


def load_model(folder: Path) -> tuple[MochaModel, Tokenizer]:
    """The model of a folder, in evaluation mode, and its tokenizer.

    Raises:
        ModelError: a missing file, a newer format version, an unknown setting, or weights that do not fit.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: is no model folder; expected a folder with {', '.join(FILES)}")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder}: {' and '.join(missing)} missing; a model folder holds {', '.join(FILES)}")
    config = read_config(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    if len(tokenizer) != config.vocab_size:
        raise ModelError(
            f"{folder}: tokenizer.model has {len(tokenizer)} units and config.toml says {config.vocab_size}; "
            "they are not of one model"
        )
    # Not on the meta device: that imports torch's compiler, 170 MiB and two seconds, to save 0.1 s of initialising.
    with torch.random.fork_rng(devices=()):
        model = MochaModel(config)
    _load_weights(model, folder / "model.safetensors")
    return model.eval(), tokenizer


def read_config(folder: Path) -> ModelConfig:
    """The settings in a model folder. Raises ModelError."""
    path = folder / "config.toml"
    try:
        values: dict[str, Any] = read_toml(path)
        version = values.pop("format_version", None)
        if type(version) is not int or version < 1:
            raise ModelError(f"{path}: format_version is {version!r}; expected a whole number up to {FORMAT_VERSION}")
        if version > FORMAT_VERSION:
            raise ModelError(
                f"{path}: format version {version} is newer than {FORMAT_VERSION}, the newest this release reads; "
                "upgrade mocha-stream"
            )
        return from_dict(ModelConfig, values, str(path))
    except ConfigError as error:
        message = str(error)
        raise ModelError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: is no whole safetensors file ({error}); copy it anew") from None
    for name in [name for name in weights if name.endswith(SCALE) and name.removesuffix(SCALE) in weights]:
        scale, matrix = weights.pop(name), weights[name.removesuffix(SCALE)]
        if scale.shape != matrix.shape[:1] or matrix.dtype != torch.int8:
            raise ModelError(
                f"{path}: weight {name} has shape {tuple(scale.shape)}; expected one step a row of an int8 matrix of "
                f"shape {tuple(matrix.shape)}"
            )
        weights[name.removesuffix(SCALE)] = matrix * _by_row(scale, matrix)
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in weights:
            raise ModelError(f"{path}: weight {name} is missing; the file is not of the model in config.toml")
        if weights[name].shape != tensor.shape:
            raise ModelError(
                f"{path}: weight {name} has shape {tuple(weights[name].shape)}; config.toml wants {tuple(tensor.shape)}"
            )
        if not (weights[name].is_floating_point() and weights[name].isfinite().all()):
            raise ModelError(f"{path}: weight {name} holds what is no finite number; the file is spoiled, copy it anew")
    for name in weights:
        if name not in expected:
            raise ModelError(f"{path}: weight {name} is unknown; the file is not of the model in config.toml")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, assign=True)


def _quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The int8 weights of a matrix, or of any tensor by its first dimension, and the step of each row."""
    scale = matrix.flatten(1).abs().amax(1).clamp(min=1e-12) / 127
    return (matrix / _by_row(scale, matrix)).round().to(torch.int8), scale


def _by_row(scale: Tensor, matrix: Tensor) -> Tensor:
    return scale.view(-1, *[1] * (matrix.dim() - 1))
