"""Settings of a model, as frozen dataclasses that are read from and written to TOML. Imports no torch.

A recipe and a model folder share these classes; an unknown name, a wrong kind of value or a value out of
range is refused with its place in the file.
"""

import json
import tomllib
from copy import deepcopy
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import ConfigError

FORMAT_VERSION = 1
"""Of the model folder. A reader refuses what is newer than itself."""

Settings = TypeVar("Settings")


def check(condition: bool, message: str) -> None:
    """Raises `ConfigError(message)` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)


def check_least(settings: object, table: str, least: int, *names: str) -> None:
    """Raises `ConfigError` unless each of these settings of a table is at least so much."""
    for name in names:
        value = getattr(settings, name)
        check(value >= least, f"{table}.{name} is {value}; expected {least} or more")


@dataclass(frozen=True)
class FeatureConfig:
    """Log-mel energies as Kaldi computes them, normalised with the statistics kept in the model."""

    sample_rate: int = 16_000
    num_mels: int = 80
    window_ms: float = 25.0
    hop_ms: float = 10.0

    def __post_init__(self) -> None:
        check(self.sample_rate >= 8000, f"features.sample_rate is {self.sample_rate} Hz; expected 8000 or more")
        check_least(self, "features", 8, "num_mels")
        check(
            0 < self.hop_ms <= self.window_ms,
            f"features.hop_ms is {self.hop_ms} with a window of {self.window_ms} ms; a hop is above 0 and within it",
        )

    @property
    def hop_s(self) -> float:
        """From one frame to the next."""
        return self.hop_ms / 1000

    @property
    def hop_samples(self) -> int:
        return round(self.sample_rate * self.hop_ms / 1000)

    @property
    def window_samples(self) -> int:
        return round(self.sample_rate * self.window_ms / 1000)


@dataclass(frozen=True)
class EncoderConfig:
    kind: str = "highway_bilstm"
    """`highway_bilstm` or `star_transformer`."""
    width: int = 256
    num_layers: int = 5
    hidden: int = 256
    """Cells of the LSTM of each direction; head_dim x heads of the Star-Transformer is `width`."""
    chunks: tuple[int, ...] = (4, 8, 16)
    """Encoder frames a chunk may have; each with the look ahead is a latency that the model is trained for, and so is
    the whole."""
    lookahead: int = 0
    """Encoder frames after its chunk that the backward direction also hears, but no more than the chunk has: better
    words for more arithmetic, since they are heard again as frames of the next chunk."""
    relay_memory: int = 128
    """Star-Transformer: encoder frames that the relay attends to."""
    num_heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        kinds = ("highway_bilstm", "star_transformer")
        check(self.kind in kinds, f"encoder.kind is {self.kind!r}; expected one of {', '.join(kinds)}")
        check_least(self, "encoder", 1, "width", "num_layers", "hidden", "relay_memory", "num_heads")
        check(self.lookahead >= 0, f"encoder.lookahead is {self.lookahead}; it counts frames, so it is 0 or more")
        check(0 <= self.dropout < 1, f"encoder.dropout is {self.dropout}; expected 0 <= dropout < 1")
        if self.kind == "star_transformer":
            check(
                self.width % self.num_heads == 0,
                f"encoder.width is {self.width} and encoder.num_heads {self.num_heads}; the heads divide the width",
            )
            check(
                self.lookahead == 0,
                f"encoder.lookahead is {self.lookahead}; the star_transformer has none, set it to 0",
            )
        check(
            len(self.chunks) > 0 and all(chunk >= 1 for chunk in self.chunks),
            f"encoder.chunks is {list(self.chunks)}; expected at least one, each counting 1 frame or more",
        )

    def ahead(self, chunk: int) -> int:
        """Encoder frames that a chunk of so many looks ahead."""
        return min(self.lookahead, chunk)


@dataclass(frozen=True)
class AttentionConfig:
    energy: str = "dot"
    """`dot` (scaled dot product) or `additive` (the published form)."""
    width: int = 256
    window: int = 4
    """Encoder frames that a token attends to, up to and with the one it stops at; `w` in the paper."""
    init_r: float = -1.0
    """Offset of the monotonic energy at the start of training; about -ln(frames per token)."""
    on_miss: str = "stop"
    """At the end of a stream, when no frame is chosen: `stop` ends, `last` attends the last frame once."""

    def __post_init__(self) -> None:
        check(self.energy in ("dot", "additive"), f"attention.energy is {self.energy!r}; expected dot or additive")
        check(self.on_miss in ("stop", "last"), f"attention.on_miss is {self.on_miss!r}; expected stop or last")
        check_least(self, "attention", 1, "width")
        check(self.window >= 1, f"attention.window is {self.window}; it counts frames, so it is 1 or more")


@dataclass(frozen=True)
class DecoderConfig:
    width: int = 256
    embedding: int = 256
    dropout: float = 0.2

    def __post_init__(self) -> None:
        check_least(self, "decoder", 1, "width", "embedding")
        check(0 <= self.dropout < 1, f"decoder.dropout is {self.dropout}; expected 0 <= dropout < 1")


@dataclass(frozen=True)
class BeamConfig:
    """How hypotheses are found and weighed. Weights are of natural logarithms of probabilities.

    Raises:
        ConfigError: a value out of range.
    """

    size: int = 8
    attention: float = 0.5
    """Weight of the decoder; CTC has what is missing to 1."""
    language_model: str = ""
    """File of a `language_model.LanguageModel`; none without a name."""
    language: float = 0.4
    """Its weight, if there is one."""
    bonus: float = 1.5
    """Added for each token, since probabilities, all below 1, are in favour of few."""

    def __post_init__(self) -> None:
        check_least(self, "beam", 1, "size")
        check_least(self, "beam", 0, "attention", "language")
        check(self.attention <= 1, f"beam.attention is {self.attention}; it is a share, 0 to 1")


@dataclass(frozen=True)
class ModelConfig:
    features: FeatureConfig = field(default_factory=FeatureConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    vocab_size: int = 256

    def __post_init__(self) -> None:
        check(self.vocab_size >= 2, f"vocab_size is {self.vocab_size}; expected 2 or more")


def _convert(kind: Any, value: Any, where: str) -> Any:
    """`value` as `kind`, which is a dataclass, a plain type, an optional or a tuple of one type."""
    if is_dataclass(kind):
        check(isinstance(value, dict), f"{where} is {value!r}; expected a table of settings")
        return from_dict(kind, value, where)  # type: ignore[arg-type]
    if get_origin(kind) in (Union, UnionType):
        options = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None else _convert(options[0], value, where)
    if get_origin(kind) is tuple:
        check(isinstance(value, list | tuple), f"{where} is {value!r}; expected a list")
        return tuple(_convert(get_args(kind)[0], item, where) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    check(type(value) is kind, f"{where} is {value!r}; expected {_KINDS.get(kind, str(kind))}")
    return value


_KINDS = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}


def from_dict(kind: type[Settings], values: dict[str, Any], where: str) -> Settings:
    """Builds the dataclass `kind`, refusing any name it does not have. `where` opens each message.

    Raises:
        ConfigError: an unknown or missing name, a value of the wrong kind or out of range.
    """
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown setting {name!r}; {hint}")
    for item in fields(kind):  # type: ignore[arg-type]
        has_default = item.default is not MISSING or item.default_factory is not MISSING
        check(has_default or item.name in values, f"{where}: setting {item.name!r} is missing")
    return kind(**{name: _convert(hints[name], value, f"{where}: {name}") for name, value in values.items()})


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ConfigError: no such file, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); expected a TOML file of settings") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML ({error}); mend the line it names") from None


def set_values(values: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A copy of the tables with each `table.key=value` of `assignments` written in.

    The value is read as TOML (`3`, `0.5`, `true`, `[4, 8]`) or, failing that, taken as text.
    """
    result = deepcopy(values)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        check(bool(equals and name), f"--set {assignment!r}; expected KEY=VALUE, for instance training.epochs=10")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *tables, key = name.strip().split(".")
        table = result
        for part in tables:
            table = table.setdefault(part, {})
            check(isinstance(table, dict), f"--set {assignment!r}: {part!r} is a setting, not a table")
        table[key] = value
    return result


def to_toml(settings: Any, table: str = "") -> str:
    """TOML text of a dataclass of settings; `from_dict` reads it back. Settings that are None are left out."""
    lines, tables = [], []
    values = settings if isinstance(settings, dict) else asdict(settings)
    for name, value in values.items():
        if isinstance(value, dict):
            tables.append((name, value))
        elif value is not None:
            lines.append(f"{name} = {_toml_value(value)}")
    for name, inner in tables:
        lines += ["", f"[{table}{name}]", *to_toml(inner, f"{table}{name}.").rstrip("\n").split("\n")]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    # TOML's strings, lists and numbers are those of JSON, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
