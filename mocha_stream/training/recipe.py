"""A recipe: everything that a training run depends on, read from one TOML file."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import ModelConfig, check, check_least, from_dict, read_toml, set_values
from .augment import AugmentConfig


@dataclass(frozen=True)
class DataConfig:
    train: tuple[str, ...]
    """Folders or manifests, from the recipe's folder."""
    dev: str
    cache: str
    """Folder for computed features, about 58 MB an hour of audio and speed."""
    speeds: tuple[float, ...] = (0.9, 1.0, 1.1)
    """Each epoch hears each utterance at one of them."""
    shortest_s: float = 0.3
    longest_s: float = 24.0
    join: float = 0.0
    """Share of utterances that are followed by another one in the same example, as in a stream."""
    splice: float = 0.0
    """Share of utterances that are cut between words, and put together anew among those of their speaker."""
    words: str = ""
    """Folder that tells when words are spoken, for `splice`, as `recipes/librispeech/words.py` writes it."""
    text: tuple[str, ...] = ()
    """Files of text for `loss.text`, a sentence a line, plain or .xz."""
    teacher: str = ""
    """Folder of a larger model's frames for `loss.teacher`, as `recipes/librispeech/teacher.py` writes them."""
    text_lines: int = 48
    """Lines of it in an update, over all processes."""
    dev_utterances: int = 200
    """How many, evenly spread, are decoded after each epoch."""

    def __post_init__(self) -> None:
        check(len(self.train) > 0, "data.train is empty; expected one folder or manifest at least")
        check(all(0.5 <= speed <= 2 for speed in self.speeds), f"data.speeds is {list(self.speeds)}; expected 0.5 to 2")
        check(len(self.speeds) > 0, "data.speeds is empty; expected one speed at least, 1.0 for none changed")
        check(0 <= self.join <= 1, f"data.join is {self.join}; it is a share, 0 to 1")
        check(0 <= self.splice <= 1, f"data.splice is {self.splice}; it is a share, 0 to 1")


@dataclass(frozen=True)
class TokenizerConfig:
    text: tuple[str, ...] = ()
    """Files of text, a sentence a line, plain or .xz; without any, the training transcripts."""


@dataclass(frozen=True)
class LossConfig:
    ctc: float = 0.5
    """Share of CTC; the decoder has the rest."""
    label_smoothing: float = 0.1
    quantity: float = 0.1
    synchrony: float = 0.0
    synchrony_from: float = 0.2
    """Part of the run after which CTC is trusted to say where tokens end."""
    delay_limit: int | None = None
    """Encoder frames after its end, by CTC, that a token may still stop at (DeCoT); without it, any."""
    discount: float = 0.0
    """Share that is taken off the probability to stop (StableEmit); `quantity` has the stops recover it."""
    noise: float = 1.0
    """Standard deviation, on the stop energies."""
    noise_rise: float = 0.0
    """Part of the run over which the noise grows from 0."""
    consistency: float = 0.0
    """Weight of the divergence between two views of each utterance; above 0, a batch holds each of its utterances
    twice, changed in two ways."""
    text: float = 0.0
    """Weight of the decoder's loss on the lines of `data.text`."""
    teacher: float = 0.0
    """Weight of the distance from the frames of a larger model, `data.teacher`."""

    def __post_init__(self) -> None:
        check(0 <= self.ctc <= 1, f"loss.ctc is {self.ctc}; it is a share, 0 to 1")
        check(0 <= self.label_smoothing < 1, f"loss.label_smoothing is {self.label_smoothing}; expected 0 to below 1")
        check(0 <= self.discount < 1, f"loss.discount is {self.discount}; it is a share, 0 to below 1")
        check(0 <= self.noise_rise <= 1, f"loss.noise_rise is {self.noise_rise}; it is a part of the run, 0 to 1")
        check_least(self, "loss", 0, "quantity", "synchrony", "synchrony_from", "noise")
        check_least(self, "loss", 0, "consistency", "text", "teacher")
        if self.delay_limit is not None:
            check_least(self, "loss", 0, "delay_limit")


@dataclass(frozen=True)
class TrainingConfig:
    epochs: int = 60
    batch_s: float = 140.0
    """Seconds of audio in a batch, padding included, over all processes."""
    accumulate: int = 1
    """Parts that each process takes its share of a batch in, one after the other: less memory for activations."""
    learning_rate: float = 1.5e-3
    warmup_steps: int = 500
    hold: float = 0.0
    """Part of the run that keeps the full learning rate, before it falls to 0."""
    weight_decay: float = 0.01
    clip_norm: float = 5.0
    average: int = 10
    """Epochs at the end whose weights are averaged."""
    checkpoint_steps: int = 250
    picture_epochs: int = 5
    weights: str = "float16"
    """Of the finished model: `float32`, `float16` or `int8`."""
    bfloat16: bool = True
    """Mixed precision; on CPUs worth it only where they have AMX or AVX512-BF16."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "batch_s",
            "accumulate",
            "learning_rate",
            "clip_norm",
            "average",
            "checkpoint_steps",
            "picture_epochs",
        ):
            check(getattr(self, name) > 0, f"training.{name} is {getattr(self, name)}; expected more than 0")
        kinds = ("float32", "float16", "int8")
        check(self.weights in kinds, f"training.weights is {self.weights!r}; expected one of {', '.join(kinds)}")
        check(self.warmup_steps >= 0, f"training.warmup_steps is {self.warmup_steps}; expected 0 or more")
        check(0 <= self.hold < 1, f"training.hold is {self.hold}; it is a share, 0 to below 1")


@dataclass(frozen=True)
class Recipe:
    run: str
    """Folder for checkpoints, logs and the finished model, from the recipe's folder."""
    data: DataConfig
    init: str = ""
    """Model folder whose weights, statistics and tokenizer the run begins with, from the recipe's folder."""
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    name: str = "mocha"
    description: str = ""


def read_recipe(path: Path, assignments: list[str]) -> Recipe:
    """The recipe of a file, with `table.key=value` assignments on top.

    A file whose first setting is `base = "other.toml"`, a recipe named from its own folder, has all settings of that
    one but for those it names. Relative paths are from the folder of `path`, whichever file they stand in.

    Raises:
        ConfigError: not a readable TOML file, an unknown or missing setting, or a value out of range.
    """
    values, bases = _read_with_base(path)
    values = set_values(values, assignments)
    where = f"{path} (based on {', '.join(base.name for base in bases)})" if bases else str(path)
    return from_dict(Recipe, values, where)


def _read_with_base(path: Path, *above: Path) -> tuple[dict[str, Any], list[Path]]:
    """The settings of a recipe on those of its base, and the files below it."""
    values = read_toml(path)
    base = values.pop("base", None)
    if base is None:
        return values, []
    check(isinstance(base, str), f"{path}: base is {base!r}; expected the name of another recipe")
    below = (path.parent / base).resolve()
    check(below not in (path.resolve(), *above), f"{path}: base is {base!r}, which is based on this file itself")
    check(below.is_file(), f"{path}: base is {base!r}; there is no file {below}, name one from this file's folder")
    base_values, bases = _read_with_base(below, path.resolve(), *above)
    return _merge(base_values, values), [below, *bases]


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`below` with what `above` names in its place, table by table."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(name), dict)
        merged[name] = _merge(below[name], value) if both else value
    return merged
