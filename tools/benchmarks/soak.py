"""Continuous speech through one session: recordings joined with pauses, for as long as is asked.

Asks whether memory and time per block stay what they were, whether the words are as good as those of the recordings
heard one by one at the same latency, and whether their times drift.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from mocha_stream.audio import read_audio
from mocha_stream.corpus import Utterance, normalise, read_corpus
from mocha_stream.evaluate import STREAM_BLOCK_S, Screen
from mocha_stream.recognizer import Recognizer
from mocha_stream.scores import Errors, count_errors
from mocha_stream.search import SCAN_BLOCK
from mocha_stream.transcript import Event, Final, Word

from .memory import resident_mib

RATE = 16_000
PAUSE_S = (0.3, 2.0)
HISS = 1e-4
"""Amplitude of the noise in the pauses: those of a microphone are never all zeros."""
LONGEST_S = 600.0
"""A recording may last so long, here."""
REPORT_S = 300.0
EDGE_S = 600.0
"""How much of the beginning and of the end is compared; at most a third of the whole each."""


@dataclass(frozen=True)
class Slot:
    """A recording within the stream."""

    utterance: Utterance
    start_s: float
    end_s: float


@dataclass
class Soak:
    """What an endless stream came to; times in seconds of audio unless said otherwise."""

    hours: float
    memory: list[tuple[float, float]] = field(default_factory=list)
    """(audio so far, resident MiB), every `REPORT_S`."""
    block_times: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """Wall clock of each block."""
    cpu_times: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    """Processor time of each block, which other programs do not lengthen."""
    slots: list[Slot] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    num_rewrites: int = 0
    energies: int = 0
    energy_bound: int = 0
    num_forced: int = 0

    def joined(self) -> Errors:
        reference = " ".join(slot.utterance.text for slot in self.slots)
        return count_errors(reference, " ".join(normalise(word.word) for word in self.words))

    def growth_mib(self) -> float:
        """From the first report on, which comes after `REPORT_S`."""
        return max(mib for _, mib in self.memory) - self.memory[0][1]

    def slowdown(self, times: np.ndarray) -> float:
        """Mean time of a block at the end over that at the beginning."""
        edge = min(round(EDGE_S / STREAM_BLOCK_S), len(times) // 3)
        return float(np.mean(times[-edge:]) / np.mean(times[:edge]))


def run(data: Path, hours: float, latency_ms: int, model: Path | None) -> None:
    """Prints the reports as they come and the judgement at the end."""
    torch.set_num_threads(1)
    recognizer = Recognizer.load(model)
    utterances = read_corpus(data)
    recognizer.session(latency_ms)  # refuses the latency at once
    soak = listen(recognizer, utterances, hours, latency_ms)
    apart = recognise_apart(recognizer, {slot.utterance.id: slot.utterance for slot in soak.slots}, latency_ms)
    print(describe(soak, apart, latency_ms))


def listen(recognizer: Recognizer, utterances: Sequence[Utterance], hours: float, latency_ms: int) -> Soak:
    """Feeds one session for `hours` of audio, to the end of a recording.

    What is noted on the way lies in arrays made beforehand and in a file, so that growth of memory is the session's.
    """
    soak, screen = Soak(hours), Screen()
    session = recognizer.session(latency_ms)
    waiting = np.zeros(0, np.float32)
    size, num_blocks = round(STREAM_BLOCK_S * RATE), 0
    wall, cpu = np.ones((2, round((hours * 3600 + LONGEST_S) / STREAM_BLOCK_S)), np.float32)
    report = round(min(REPORT_S, hours * 360) / STREAM_BLOCK_S)  # blocks
    with tempfile.TemporaryFile("w+") as file:
        for samples in _stream(utterances, hours, soak.slots):
            waiting = np.concatenate([waiting, samples])
            while len(waiting) >= size:
                block, waiting = waiting[:size], waiting[size:]
                began, cpu_began = time.perf_counter(), time.process_time()
                events = session.feed(block, RATE)
                cpu[num_blocks] = time.process_time() - cpu_began
                wall[num_blocks] = time.perf_counter() - began
                num_blocks += 1
                screen = _keep(events, screen, soak, file)
                if num_blocks % report == 0:
                    soak.memory.append((num_blocks * STREAM_BLOCK_S, resident_mib()))
                    recent = 1000 * wall[num_blocks - report : num_blocks].mean()
                    at_s, mib = soak.memory[-1]
                    print(f"{at_s:6.0f} s of audio: {mib:.1f} MiB, {recent:.2f} ms per block", flush=True)
        _keep(session.feed(waiting, RATE) + session.finish(), screen, soak, file)
        file.seek(0)
        soak.words = [Word(*json.loads(line)) for line in file]
    soak.block_times, soak.cpu_times = wall[:num_blocks], cpu[:num_blocks]
    soak.energies, soak.num_forced = session.num_energies, session.num_forced
    soak.energy_bound = session.num_frames + SCAN_BLOCK * session.num_tokens
    return soak


def _stream(utterances: Sequence[Utterance], hours: float, slots: list[Slot]) -> Iterator[np.ndarray]:
    """Recordings and pauses in turn, all recordings again where they do not suffice; notes where each lies."""
    random = np.random.default_rng(0)
    num_samples = 0
    while True:
        for utterance in utterances:
            if num_samples >= hours * 3600 * RATE:
                return
            pause = random.standard_normal(round(random.uniform(*PAUSE_S) * RATE)) * HISS
            samples = read_audio(utterance.path)
            start_s = (num_samples + len(pause)) / RATE
            num_samples += len(pause) + len(samples)
            slots.append(Slot(utterance, start_s, num_samples / RATE))
            yield pause.astype(np.float32)
            yield samples


def _keep(events: list[Event], screen: Screen, soak: Soak, file: TextIO) -> Screen:
    """Writes the words of finals to the file; returns the screen, an empty one after a final."""
    for event in events:
        screen.show([event])
        if isinstance(event, Final):
            file.writelines(json.dumps(astuple(word)) + "\n" for word in event.words)
            soak.num_rewrites += screen.num_rewrites
            screen = Screen()
    return screen


def recognise_apart(
    recognizer: Recognizer, utterances: dict[str, Utterance], latency_ms: int
) -> dict[str, tuple[Word, ...]]:
    """The words of each recording heard alone."""
    return {name: recognizer.transcribe(item.path, latency_ms).words for name, item in utterances.items()}


def drifts(soak: Soak, apart: dict[str, tuple[Word, ...]]) -> list[tuple[float, float]]:
    """(place in the stream, how much later there) of the end of each word that both ways of hearing share."""
    found, first = [], 0
    for i, slot in enumerate(soak.slots):
        until = soak.slots[i + 1].start_s if i + 1 < len(soak.slots) else np.inf
        last = first
        while last < len(soak.words) and soak.words[last].end_s < until:
            last += 1
        here, alone = soak.words[first:last], apart[slot.utterance.id]
        first = last
        matcher = SequenceMatcher(None, [word.word for word in here], [word.word for word in alone], autojunk=False)
        for a, b, size in matcher.get_matching_blocks():
            for k in range(size):
                found.append((here[a + k].end_s, here[a + k].end_s - slot.start_s - alone[b + k].end_s))
    return found


def describe(soak: Soak, apart: dict[str, tuple[Word, ...]], latency_ms: int) -> str:
    """The judgement, a line a question."""
    audio_s = soak.slots[-1].end_s
    alone = sum(
        (
            count_errors(slot.utterance.text, " ".join(normalise(word.word) for word in apart[slot.utterance.id]))
            for slot in soak.slots
        ),
        Errors(),
    )
    found = drifts(soak, apart)
    edge = min(EDGE_S, audio_s / 3)
    early = [drift for at_s, drift in found if at_s < edge]
    late = [drift for at_s, drift in found if at_s >= audio_s - edge]
    joined = soak.joined()
    lines = [
        f"{audio_s / 3600:.2f} h, {len(soak.slots)} recordings joined with pauses of {PAUSE_S[0]} to {PAUSE_S[1]} s; "
        f"latency {latency_ms} ms, blocks of {1000 * STREAM_BLOCK_S:.0f} ms, one thread; load of the machine "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        f"memory            {soak.memory[0][1]:.1f} MiB at {soak.memory[0][0]:.0f} s; at most "
        f"{soak.growth_mib():+.1f} MiB after that",
        f"time per block    {1000 * np.mean(soak.block_times):.2f} ms, at most {1000 * max(soak.block_times):.0f} ms; "
        f"last {edge:.0f} s / first {edge:.0f} s = {soak.slowdown(soak.block_times):.3f} "
        f"(of processor time {soak.slowdown(soak.cpu_times):.3f})",
        f"real-time factor  {sum(soak.block_times) / audio_s:.4f} "
        f"(of processor time {sum(soak.cpu_times) / audio_s:.4f})",
        f"WER               {_percent(joined)} joined, {_percent(alone)} one by one",
        f"times             {_middle(early)} late in the first {edge:.0f} s, {_middle(late)} in the last, against the "
        f"recordings one by one ({len(found)} shared words)",
        f"rewritten words   {soak.num_rewrites}",
        f"energies          {soak.energies} <= bound {soak.energy_bound}",
        f"loop guard        {soak.num_forced} times",
    ]
    return "\n".join(lines)


def _percent(errors: Errors) -> str:
    return "-" if errors.wer is None else f"{errors.wer:.2f}%"


def _middle(values: list[float]) -> str:
    return f"{np.median(values):+.3f} s" if values else "unknown"
