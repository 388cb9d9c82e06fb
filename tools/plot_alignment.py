"""Draws where a model hears the tokens of a recording: python tools/plot_alignment.py FILE [--output PNG].

Above, the recording as the model gets it, with the frame that each token stops at; below, for each token, the frames
that its attention window weighs.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from mocha_stream.audio import read_audio
from mocha_stream.errors import ConfigError, MissingExtraError, MochaError
from mocha_stream.features import log_mel
from mocha_stream.recognizer import Recognizer
from mocha_stream.search import GreedySearch, Tokens
from mocha_stream.tokenizer import SPACE

LONGEST_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Draws where a model hears the tokens of a recording.")
    parser.add_argument("file", type=Path, metavar="FILE", help=f"recording of at most {LONGEST_S:.0f} s")
    parser.add_argument("--model", type=Path, metavar="DIR", help="model folder (default: the bundled model)")
    parser.add_argument("--latency-ms", type=int, metavar="N", help="of the encoder (default: the whole recording)")
    parser.add_argument("--output", type=Path, metavar="PNG", help="default: FILE with the ending .png, here")
    options = parser.parse_args(arguments)
    try:
        target = options.output or Path(options.file.with_suffix(".png").name)
        print(f"{target}: {plot(options.file, Recognizer.load(options.model), options.latency_ms, target)}")
    except MochaError as error:
        print(f"plot_alignment: {error}", file=sys.stderr)
        return 2
    return 0


def plot(path: Path, recognizer: Recognizer, latency_ms: int | None, target: Path) -> str:
    """Writes the picture and returns the text.

    Raises:
        AudioError, ConfigError: a recording that cannot be read or is too long, or an unknown latency.
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("pictures need matplotlib; pip install 'mocha-stream[train]'") from None

    features, tokens, starts = align(path, recognizer, latency_ms)
    pieces = [recognizer.tokenizer.pieces[token] for token in tokens.token.tolist()]
    frame_s, duration_s = recognizer.frame_s, len(features) * recognizer.config.features.hop_ms / 1000
    stops = (tokens.stop.numpy() + 1) * frame_s

    figure = Figure(figsize=(max(8.0, 1.6 * duration_s), 6.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.imshow(features.T, origin="lower", aspect="auto", cmap="magma", extent=(0, duration_s, 0, features.shape[1]))
    above.vlines(stops, 0, features.shape[1], color="white", linewidth=0.7, alpha=0.8)
    for i, (stop, piece) in enumerate(zip(stops, pieces, strict=True)):
        height = features.shape[1] * (1.02 + 0.06 * (i % 4))  # neighbours at different heights do not overlap
        above.text(stop, height, piece.replace(SPACE, "·"), ha="right", va="bottom", fontsize=8)
    above.set_ylabel("mel band")
    for i, (stop, start) in enumerate(zip(stops, starts, strict=True)):
        below.plot((start * frame_s, stop), (i + 1, i + 1), color="tab:gray", linewidth=2)
    below.plot(tokens.centre.numpy() * frame_s + frame_s / 2, np.arange(1, len(pieces) + 1), ".", color="tab:red")
    below.plot(stops, np.arange(1, len(pieces) + 1), "|", color="black")
    below.set(xlabel="seconds", ylabel="token", xlim=(0, duration_s))
    text = recognizer.tokenizer.decode(tokens.token.tolist())
    heard = "whole recording" if latency_ms is None else f"latency {latency_ms} ms"
    figure.suptitle(
        f"{path.name}, {heard}: window (grey), its centre (red) and stop (black) of each token", fontsize=10
    )
    figure.savefig(target, dpi=110)
    return text


@torch.inference_mode()
def align(path: Path, recognizer: Recognizer, latency_ms: int | None) -> tuple[np.ndarray, Tokens, list[int]]:
    """The (T, M) features, the tokens of greedy search, and the first frame in the window of each."""
    model = recognizer.model
    samples = read_audio(path, model.config.features.sample_rate)
    duration_s = len(samples) / model.config.features.sample_rate
    if duration_s > LONGEST_S:
        raise ConfigError(f"{path}: lasts {duration_s:.0f} s; a picture holds {LONGEST_S:.0f} s, cut it first")
    recognizer.session(latency_ms)  # refuses an unknown latency
    chunk = None if latency_ms is None else round(latency_ms / 1000 / recognizer.frame_s)
    features = log_mel(samples, model.config.features)
    frames, _ = model.encoder(torch.from_numpy(features)[None], torch.tensor([len(features)]), chunk)
    search = GreedySearch(model)
    tokens, state = search.step(frames, search.initial_state(1))
    tokens = Tokens(*(torch.cat(parts) for parts in zip(tokens, search.finish(state), strict=True)))
    return features, tokens, [max(0, stop + 1 - search.window) for stop in tokens.stop.tolist()]


if __name__ == "__main__":
    sys.exit(main())
