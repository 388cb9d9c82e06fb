"""A model on disk: a folder of `config.toml`, `model.safetensors`, `tokenizer.model` and `README.md`.

Nothing in it is ever unpickled. Weights may be float16 on disk; they are float32 in memory.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from .config import FORMAT_VERSION, ModelConfig, from_dict, read_toml, to_toml
from .errors import ConfigError, ModelError
from .model import MochaModel
from .tokenizer import Tokenizer

FILES = ("config.toml", "model.safetensors", "tokenizer.model")


def save_model(model: MochaModel, tokenizer: Tokenizer, folder: Path, card: str, dtype: torch.dtype) -> None:
    """Writes the folder; `card` is the text of its README.md, `dtype` that of the weights on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f"format_version = {FORMAT_VERSION}\n{to_toml(model.config)}", encoding="utf-8")
    weights = {name: tensor.detach().cpu().to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    for name in ("encoder.frontend.mean", "encoder.frontend.deviation"):
        weights[name] = weights[name].float() if dtype == torch.float32 else model.state_dict()[name].cpu().float()
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
