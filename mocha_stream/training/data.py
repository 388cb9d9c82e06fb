"""What training reads: features computed once and kept on disk, and batches of like length.

A cache folder holds one pair of files per corpus and speed: `NAME.f16`, all log-mel frames one after the other
as float16 without normalisation, and `NAME.jsonl`, one line an utterance.
"""

import json
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import soxr
from tqdm import tqdm

from ..audio import read_audio
from ..config import FeatureConfig
from ..corpus import Utterance, read_corpus
from ..errors import DataError
from ..features import log_mel

WORTH_A_PROCESS = 100
"""Utterances for which one more process, a second or two to start, saves time."""


@dataclass(frozen=True)
class Example:
    """An utterance whose features lie in a cache."""

    id: str
    text: str
    speaker: str
    speed: float
    num_frames: int
    offset: int
    """The first frame of the utterance in the file of features."""
    features: np.ndarray
    """The (all frames, M) float16 file, mapped into memory."""
    teacher: "Example | None" = None
    """The frames that a larger model made of the same utterance (`teacher.py`)."""
    words: "Example | None" = None
    """When its words are spoken, at speed 1: (W, 2) bounds in units of 10 ms (`splice.py`)."""
    first: int = 0
    """Frames of the utterance before this piece of it."""

    def load(self) -> np.ndarray:
        """The (T, M) frames, float32."""
        start = self.offset + self.first
        return self.features[start : start + self.num_frames].astype(np.float32)


def _compute(utterance: Utterance, config: FeatureConfig, speed: float) -> np.ndarray:
    samples = read_audio(utterance.path, config.sample_rate)
    if speed != 1.0:
        samples = soxr.resample(samples, config.sample_rate * speed, config.sample_rate)
    return log_mel(samples, config).astype(np.float16)


def cache_features(corpus: Path, config: FeatureConfig, speed: float, cache: Path, num_processes: int) -> list[Example]:
    """The examples of a corpus at a speed (1.1: spoken faster, higher); computed unless the cache has them.

    Raises:
        DataError, AudioError: a corpus or a recording that cannot be read.
    """
    shape = f"{config.sample_rate}-{config.num_mels}-{config.window_ms:g}-{config.hop_ms:g}"
    stem = cache / f"{corpus_name(corpus)}-{shape}-x{speed:g}"
    write_cache(corpus, stem, partial(_compute, config=config, speed=speed), num_processes)
    return read_cache(corpus, stem, config.num_mels, speed)


def corpus_name(corpus: Path) -> str:
    """The name of a corpus in a cache."""
    return f"{corpus.resolve().parent.name}-{corpus.name}"


def cache_exists(stem: Path) -> bool:
    return _index(stem).exists()


def _index(stem: Path) -> Path:
    return stem.with_name(stem.name + ".jsonl")


def read_cache(corpus: Path, stem: Path, width: int, speed: float) -> list[Example]:
    """The examples of a corpus whose (T, width) frames lie in the two files named `stem`.

    Raises:
        DataError: files that do not fit each other or the corpus.
    """
    index, frames = _index(stem), stem.with_name(stem.name + ".f16")
    entries = [json.loads(line) for line in index.read_text(encoding="utf-8").splitlines()]
    if corpus.exists():  # the cache alone will do, for instance on another machine
        listed = [(utterance.id, utterance.text) for utterance in read_corpus(corpus)]
        if listed != [(entry["id"], entry["text"]) for entry in entries]:
            raise DataError(
                f"{index}: lists other utterances than {corpus}; delete it to compute the features anew, "
                "or choose another data.cache where another corpus has the same name"
            )
    features = np.memmap(frames, np.float16, mode="r").reshape(-1, width)
    expected = sum(entry["num_frames"] for entry in entries)
    if len(features) != expected:
        raise DataError(
            f"{frames}: {len(features)} frames, its index lists {expected}; delete both files and start anew"
        )
    return [Example(**entry, speed=speed, features=features) for entry in entries]


def read_beside(corpus: Path, folder: Path, width: int, script: str) -> dict[str, Example]:
    """What a script of recipes/librispeech wrote of a corpus, (T, width) for each utterance, by id.

    Raises:
        DataError: the folder lacks it, or files that do not fit each other or the corpus.
    """
    stem = folder / corpus_name(corpus)
    if not cache_exists(stem):
        raise DataError(f"{stem}.jsonl: not there; run recipes/librispeech/{script} {folder} {corpus}")
    return {example.id: example for example in read_cache(corpus, stem, width, 1.0)}


def write_cache(corpus: Path, stem: Path, compute: Callable[[Utterance], np.ndarray], num_processes: int) -> None:
    """Writes the (T, width) float16 frames that `compute` makes of each utterance of a corpus, unless they are there.

    The index appears last and whole, so an interrupted run leaves nothing that looks finished.

    Raises:
        DataError, AudioError: a corpus or a recording that cannot be read.
    """
    if cache_exists(stem):
        return
    utterances, index, frames = read_corpus(corpus), _index(stem), stem.with_name(stem.name + ".f16")
    stem.parent.mkdir(parents=True, exist_ok=True)
    partial_frames, partial_index = frames.with_name(frames.name + ".part"), index.with_name(index.name + ".part")
    num_processes, offset = min(num_processes, 1 + len(utterances) // WORTH_A_PROCESS), 0
    with (
        partial_frames.open("wb") as frame_file,
        partial_index.open("w", encoding="utf-8") as index_file,
        closing(_compute_all(utterances, compute, num_processes)) as computed,
    ):
        progress = tqdm(computed, f"features {frames.stem}", total=len(utterances), unit="utt", leave=False)
        for utterance, features in zip(utterances, progress, strict=True):
            features.tofile(frame_file)
            entry = {"id": utterance.id, "text": utterance.text, "speaker": utterance.speaker}
            index_file.write(json.dumps({**entry, "num_frames": len(features), "offset": offset}) + "\n")
            offset += len(features)
    partial_frames.rename(frames)
    partial_index.rename(index)


def _compute_all(
    utterances: list[Utterance], compute: Callable[[Utterance], np.ndarray], num_processes: int
) -> Generator[np.ndarray, None, None]:
    """What `compute` makes of each utterance, in their order. Raises DataError where a process dies."""
    if num_processes == 1:
        yield from map(compute, utterances)
        return
    with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(compute, utterances, chunksize=16)
        except BrokenProcessPool:
            raise DataError(
                "a process that computed features was ended from outside, for want of memory perhaps; start again"
            ) from None


def feature_statistics(examples: list[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each mel band over all frames, (M,) float32 each."""
    total, squares, count = 0.0, 0.0, 0
    for example in examples:
        frames = example.load().astype(np.float64)
        total, squares, count = total + frames.sum(0), squares + (frames**2).sum(0), count + len(frames)
    mean = np.asarray(total / count)
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 1e-6))
    return mean.astype(np.float32), deviation.astype(np.float32)


def make_batches(num_frames: np.ndarray, frames_per_batch: int, epoch: int, seed: int) -> list[np.ndarray]:
    """Indices of the utterances of each batch of an epoch: like lengths together, batches in random order.

    A batch holds at most `frames_per_batch` frames with its padding, and at least one utterance. The result
    depends on the arguments alone, so a run that resumes, or shares the work, finds the same batches.
    """
    random = np.random.default_rng((seed, epoch))
    order = np.argsort(num_frames * random.uniform(0.9, 1.1, len(num_frames)), kind="stable")
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        longest = num_frames[order[start : end + 1]].max()
        if end == len(order) or longest * (end + 1 - start) > frames_per_batch:
            batches.append(order[start:end])
            start = end
    return [batches[i] for i in random.permutation(len(batches))]


def pad(rows: list[np.ndarray], multiple: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different length as one array filled up with zeros, and their lengths.

    Lengths that are multiples of something recur: oneDNN compiles its kernels anew for each shape.
    """
    lengths = np.array([len(row) for row in rows], np.int64)
    longest = -(-max(1, lengths.max(initial=0)) // multiple) * multiple
    padded = np.zeros((len(rows), longest, *rows[0].shape[1:]), rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded, lengths


def share(batch: np.ndarray, num_frames: np.ndarray, rank: int, world: int) -> np.ndarray:
    """The rows of a batch that process `rank` of `world` works on; neighbours in length go to different ones."""
    return batch[np.argsort(-num_frames[batch], kind="stable")][rank::world]


def read_examples(
    corpora: list[Path], config: FeatureConfig, speeds: tuple[float, ...], cache: Path, num_processes: int
) -> list[Example]:
    """All examples of several corpora at several speeds."""
    return [
        example
        for corpus in corpora
        for speed in speeds
        for example in cache_features(corpus, config, speed, cache, num_processes)
    ]
