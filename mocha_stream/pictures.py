"""Figures of a report, drawn by matplotlib, which is loaded when the first one is. Imports no torch."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .errors import MissingExtraError
from .scores import NUM_BINS, Bin
from .tokenizer import SPACE
from .training.run_log import RunLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .hard_alignment import HardAlignment

MOST_POINTS = 400
"""Of a curve over the updates; more are averaged."""
LOSSES = ("loss", "token", "ctc", "quantity", "synchrony", "text")
WORST_WER = 105.0
"""Where the axis of an error rate ends: untrained models write several times as many words as there are."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; sizes in inches. Raises MissingExtraError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("pictures need matplotlib; pip install 'mocha-stream[train]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: "Figure", dots_per_inch: int = 90) -> bytes:
    """The content of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dots_per_inch)
    return file.getvalue()


def draw_alignment(alignment: "HardAlignment", title: str) -> "Figure":
    """The recording as the model gets it with the stop of each token, and below the windows that the tokens weigh."""
    features, duration_s, stops = alignment.features, alignment.duration_s, alignment.stops_s
    num_mels, numbers = features.shape[1], np.arange(1, len(stops) + 1)
    figure = new_figure(max(8.0, 1.6 * duration_s), 6.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.imshow(features.T, origin="lower", aspect="auto", cmap="magma", extent=(0, duration_s, 0, num_mels))
    above.vlines(stops, 0, num_mels, color="white", linewidth=0.7, alpha=0.8)
    for i, (stop, piece) in enumerate(zip(stops, alignment.pieces, strict=True)):
        height = num_mels * (1.02 + 0.06 * (i % 4))  # neighbours at different heights do not overlap
        above.text(stop, height, piece.replace(SPACE, "·"), ha="right", va="bottom", fontsize=8)
    above.set_ylabel("mel band")
    below.hlines(numbers, alignment.starts_s, stops, color="tab:gray", linewidth=2)
    below.plot(alignment.centres_s, numbers, ".", color="tab:red")
    below.plot(stops, numbers, "|", color="black")
    below.set(xlabel="seconds", ylabel="token", xlim=(0, duration_s))
    figure.suptitle(f"{title}: window (grey), its centre (red) and stop (black) of each token", fontsize=10)
    return figure


def draw_delays(delays_s: Sequence[float]) -> "Figure":
    """How many words have which emission delay, with the median and the 95th percentile."""
    figure = new_figure(7.0, 3.2)
    axes = figure.subplots()
    axes.hist(delays_s, bins=40, color="tab:blue")
    for value, style, name in zip(np.percentile(delays_s, (50, 95)), ("-", "--"), ("p50", "p95"), strict=True):
        axes.axvline(value, color="black", linestyle=style, linewidth=1, label=f"{name} {value:.2f} s")
    axes.set(xlabel="seconds of audio from the end of a word to its display", ylabel="words")
    axes.legend()
    return figure


def draw_reliability(bins: Sequence[Bin]) -> "Figure":
    """Share of correct words over confidence, each bar with its number of words."""
    figure = new_figure(5.0, 4.2)
    axes = figure.subplots()
    axes.plot((0, 1), (0, 1), color="black", linestyle="--", linewidth=1)
    for each in bins:
        axes.bar(each.low, each.accuracy, 1 / NUM_BINS, align="edge", color="tab:blue", edgecolor="white")
        place = (each.low + each.high) / 2
        axes.text(place, each.accuracy + 0.01, str(each.num_words), ha="center", va="bottom", fontsize=8)
    axes.plot([each.confidence for each in bins], [each.accuracy for each in bins], ".", color="tab:red")
    axes.set(xlabel="confidence", ylabel="share of words that is correct", xlim=(0, 1), ylim=(0, 1.08))
    return figure


def draw_training(log: RunLog) -> "Figure":
    """Losses over the updates, and where epochs are over, word error rates of the development set."""
    figure = new_figure(10.0, 3.6)
    left, right = figure.subplots(1, 2)
    steps = _averaged([values["step"] for values in log.steps])
    for name in LOSSES:
        values = [step.get(name, np.nan) for step in log.steps]
        if np.any(np.nan_to_num(values)):
            left.plot(steps, _averaged(values), linewidth=1, label=name)
    left.set(xlabel="update", ylabel="loss per token")
    left.legend(fontsize=8)
    names = sorted({name for epoch in log.epochs for name in epoch if name.startswith("wer")})
    for name in names:
        shown = [(epoch["step"], epoch[name]) for epoch in log.epochs if name in epoch]
        right.plot(*zip(*shown, strict=True), ".-", linewidth=1, label=name)
    right.set(xlabel="update", ylabel="WER of the development set, %")
    if names:
        right.set_ylim(0, min(WORST_WER, right.get_ylim()[1]))
        right.legend(fontsize=8)
    return figure


def _averaged(values: Sequence[float]) -> list[float]:
    return [float(np.mean(part)) for part in np.array_split(values, min(MOST_POINTS, len(values)))]
