"""When words are spoken, by the hidden Markov model of pocketsphinx, against when ours says and shows them.

Its alignment of the reference knows nothing of our model, and is good to 10 ms where the recording is clean. Of the
words that are recognised right: how far the start told is from the start spoken, and the audio heard from the end of
the word until it is shown for good.
"""

from pathlib import Path

from tqdm import tqdm

from mocha_stream.audio import join_mono
from mocha_stream.corpus import read_corpus
from mocha_stream.evaluate import Blocks, measure, measure_whole
from mocha_stream.recognizer import Recognizer
from mocha_stream.scores import ScoredWord, Span, start_errors, summary
from mocha_stream.table import table
from mocha_stream.word_times import SAMPLE_RATE, WordAligner

HEADER = ("", "words", "start off, median", "p90", "mean", "shown after its end, median", "p95")


def run(data: Path, limit: int, model: Path | None) -> None:
    recognizer, align = Recognizer.load(model), WordAligner()
    utterances = read_corpus(data)[:limit]
    known: dict[str, list[Span] | None] = {}

    def once(blocks: Blocks, text: str) -> list[Span] | None:
        if text not in known:
            known[text] = align(join_mono(blocks, SAMPLE_RATE), text)
        return known[text]

    rows = []
    for latency_ms in (None, *reversed(recognizer.latencies_ms)):
        words: list[ScoredWord] = []
        for utterance in tqdm(utterances, "recordings", leave=False, disable=None):
            if latency_ms is None:
                words += measure_whole(recognizer, utterance, once).words
            else:
                words += measure(recognizer, utterance, True, latency_ms, once).words
        rows.append([f"{latency_ms} ms" if latency_ms else "whole", *_cells(words)])
    aligned = sum(spans is not None for spans in known.values())
    print(table(HEADER, rows))
    print(f"{aligned} of {len(utterances)} recordings aligned; seconds, of the words recognised right")


def _cells(words: list[ScoredWord]) -> list[str]:
    starts, late = start_errors(words), summary([w.start_error_s for w in words if w.start_error_s is not None])
    delays = summary([word.delay_s for word in words if word.delay_s is not None])
    if starts is None or late is None:
        return ["0", *"-----"]
    off = [f"{starts[name] / 1000:.2f}" for name in ("p50", "p90")]
    cells = [f"{starts['num_words']}", *off, f"{late['mean']:+.2f}"]
    return cells + ([f"{delays[name]:.2f}" for name in ("p50", "p95")] if delays else ["-", "-"])
