"""Attention by length: the soft alignment that trains, and the hard decoding that listens.

Each measurement runs in a process of its own, on one thread. Time is that of the processor, which other programs on
the machine do not lengthen; memory is the most that the process held beyond what it began with.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocha_stream.attention import hard_chunkwise, hard_monotonic, soft_monotonic
from mocha_stream.config import EncoderConfig, ModelConfig
from mocha_stream.model import MochaModel
from mocha_stream.search import MAX_TOKENS_PER_FRAME, GreedySearch
from mocha_stream.table import table

from .memory import in_child, peak_mib, resident_mib

LENGTHS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
BATCH, STEPS = 4, 10
"""Of the soft alignments by length: few output steps, so that the sequential recursion comes to an end."""
BLOCK = 8
"""Encoder frames that come at a time, as in a session."""
STOP_RATE = 1 / 14
"""Of frames, by chance, each time they are looked at: a token comes about every 6 frames then."""
PATIENCE_S = 20.0
"""A way that took longer than this is not tried at the next length, where it would take ten times as long or more."""


def run(longest_soft: int, longest_hard: int) -> None:
    """Prints the tables."""
    torch.set_num_threads(1)
    lengths = [size for size in LENGTHS if size <= longest_soft]
    print(f"Soft alignment, {BATCH} sequences of {STEPS} output steps; then 16 of 80 at T = 400.")
    print("Errors against the sequential recursion in float64; gradients relative to the largest one.\n")
    header = ["", "T", "forward ms", "backward ms", "MiB", "error", "gradient error", "least mass"]
    cases = [(BATCH, STEPS, size) for size in lengths] + [(16, 80, 400)]
    rows = [row for case in cases for row in soft_rows(*case)]
    print(table(header, rows), flush=True)

    lengths = [size for size in LENGTHS if size <= longest_hard]
    print("\nours: soft_monotonic. Milliseconds and seconds of processor time.")
    print(f"\nHard decoding of a stream, blocks of {BLOCK} frames, against the energies of all frames at every step.\n")
    header = ["", "T", "tokens", "energies", "energies / T", "seconds", "MiB"]
    for name, way in (("incremental", listen), ("all frames", look_at_everything)):
        lines: list[list[str]] = []
        measured: list[dict[str, Any]] = []
        for size in lengths:
            if measured and measured[-1]["seconds"] > PATIENCE_S:
                lines.append([f"{name}  {size}: not tried, would take too long"])
                break
            result = in_child(way, size)
            measured.append({"size": size, **result})
            energies = result["energies"]
            cells = [
                result["tokens"],
                energies,
                f"{energies / size:.2f}",
                f"{result['seconds']:.3f}",
                f"{result['mib']:.1f}",
            ]
            lines.append([name, str(size), *map(str, cells)])
        print(table(header, lines))
        long = [item for item in measured if item["size"] >= 1000] or measured
        if len(long) > 1:
            sizes = [item["size"] for item in long]
            seconds = exponent(sizes, [item["seconds"] for item in long])
            # Below one MiB, what a process holds is chance.
            memory = exponent(sizes, [max(1.0, item["mib"]) for item in long])
            print(f"exponents from T = {sizes[0]} on: time {seconds:.2f}, memory {memory:.2f}\n", flush=True)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the values on logarithmic axes: 1 is linear, 2 quadratic."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


# ---------------------------------------------------------------- soft


def closed_form(energy: Tensor) -> Tensor:
    """The usual one, p cumprod(1-p) cumsum(previous / clamp(cumprod(1-p))), a row at a time. (B, U, S) -> (B, U, S)"""
    stop = torch.sigmoid(energy)
    previous = torch.zeros_like(energy[:, 0])
    previous[:, 0] = 1.0
    rows = []
    for row in stop.unbind(1):
        survived = torch.cat([torch.ones_like(row[:, :1]), (1 - row[:, :-1]).cumprod(-1)], -1)
        previous = row * survived * (previous / survived.clamp(min=1e-6)).cumsum(-1)
        rows.append(previous)
    return torch.stack(rows, 1)


def sequential(energy: Tensor) -> Tensor:
    """The recursion as it is written (SPEC 8.2), frame by frame. (B, U, S) -> (B, U, S)"""
    stop, go = torch.sigmoid(energy), torch.sigmoid(-energy)
    start = torch.zeros_like(energy[:, 0])
    start[:, 0] = 1.0
    previous = list(start.unbind(-1))
    rows = []
    for stops, goes in zip(stop.unbind(1), go.unbind(1), strict=True):
        arrived, row = torch.zeros_like(previous[0]), []
        for p, q, before in zip(stops.unbind(-1), goes.unbind(-1), previous, strict=True):
            arrived = arrived + before
            row.append(p * arrived)
            arrived = q * arrived
        previous = row
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, 1)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "ours": soft_monotonic,
    "closed form": closed_form,
    "sequential": sequential,
}


def energies(batch: int, steps: int, size: int) -> Tensor:
    """Of an alignment that is nearly learnt: sure at one frame a step, and 5% at all others. (B, U, S), float64"""
    random = torch.Generator().manual_seed(size)
    energy = -3 + 0.5 * torch.randn(batch, steps, size, generator=random, dtype=torch.float64)
    at = (torch.arange(1, steps + 1) * size) // (steps + 1)
    energy[:, torch.arange(steps), at] = 4.0
    return energy


def align(way: str, batch: int, steps: int, size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Seconds and memory of one way, forward and backward, its result and its gradient."""
    energy = energies(batch, steps, size).to(dtype).requires_grad_()
    weights = torch.rand(energy.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    forward, backward = [], []
    repeats = 1 if way == "sequential" else 5
    WAYS[way](energy[:, :1, :10]).sum().backward()
    before = resident_mib()
    for _ in range(repeats):
        energy.grad = None
        began = time.process_time()
        alpha = WAYS[way](energy)
        forward.append(time.process_time() - began)
        began = time.process_time()
        (alpha * weights).sum().backward()
        backward.append(time.process_time() - began)
    assert energy.grad is not None
    values = alpha.detach().double().numpy(), energy.grad.double().numpy()
    mib = peak_mib() - before
    return {"forward": min(forward), "backward": min(backward), "mib": mib, "alpha": values[0], "grad": values[1]}


def soft_rows(batch: int, steps: int, size: int) -> list[list[str]]:
    """The lines of the table for one shape."""
    exact = in_child(align, "sequential", batch, steps, size, torch.float64)
    rows = []
    for way in WAYS:
        found = in_child(align, way, batch, steps, size, torch.float32)
        error = np.abs(found["alpha"] - exact["alpha"]).max()
        gradient = np.abs(found["grad"] - exact["grad"]).max() / np.abs(exact["grad"]).max()
        mass = found["alpha"].sum(-1)
        figures = [f"{1000 * found['forward']:.1f}", f"{1000 * found['backward']:.1f}", f"{found['mib']:.1f}"]
        rows.append([way, str(size), *figures, f"{error:.1e}", f"{gradient:.1e}", f"{mass.min():.4f}"])
    exact_mass = exact["alpha"].sum(-1).min()
    rows.append(["float64", str(size), "", "", "", "", "", f"{exact_mass:.4f}"])
    return rows


# ---------------------------------------------------------------- hard


def stopping_model() -> MochaModel:
    """A model of the usual size, with random weights that stops at `STOP_RATE` of its frames."""
    torch.manual_seed(0)
    model = MochaModel(ModelConfig(encoder=EncoderConfig(num_layers=1))).eval()
    frames = torch.cat(list(stream(2000)), 1)[0]
    with torch.no_grad():
        states = model.decoder(torch.randint(1, model.config.vocab_size, (1, 500)))[0]
        energy = model.attention.stop_energy
        for layer, inputs in ((energy.key, frames), (energy.query, states)):  # from near constant to widely different
            scores = inputs @ layer.weight.T
            layer.weight /= scores.std(0)[:, None]
            layer.bias.copy_(-inputs.mean(0) @ layer.weight.T)
        all_energies = energy(energy.query(states)[None], energy.key(frames)[None])
        energy.r.sub_(torch.quantile(all_energies[0, :, :500].flatten(), 1 - STOP_RATE))
    return model


def stream(size: int) -> Iterator[Tensor]:
    """Encoder frames as they come, (1, BLOCK, D) each, never all of them in memory."""
    random = torch.Generator().manual_seed(3)
    for start in range(0, size, BLOCK):
        yield torch.randn(1, min(BLOCK, size - start), EncoderConfig().width, generator=random)


@torch.inference_mode()
def listen(size: int) -> dict[str, Any]:
    """Our search: each block as it comes."""
    model = stopping_model()
    search = GreedySearch(model)
    search.step(next(stream(BLOCK)), search.initial_state(1))
    state, before = search.initial_state(1), resident_mib()
    seconds, num_tokens, check = 0.0, 0, 0
    for frames in stream(size):
        began = time.process_time()
        tokens, state = search.step(frames, state)
        seconds += time.process_time() - began
        num_tokens += len(tokens.token)
        check += int((tokens.token * tokens.stop).sum())
    num_energies = int(state.num_energies)
    return _result(seconds, num_tokens, num_energies, before, check)


@torch.inference_mode()
def look_at_everything(size: int) -> dict[str, Any]:
    """The usual way: all frames in memory, both energies of all of them at every output step."""
    model = stopping_model()
    attention, decoder = model.attention, model.decoder
    before = resident_mib()
    memory = attention.remember(torch.cat(list(stream(size)), 1))
    lengths, start = torch.tensor([size]), torch.zeros(1, dtype=torch.long)
    state, here, num_tokens, num_energies, check = decoder.initial_state(1), 0, 0, 0, 0
    began = time.process_time()
    while True:
        query = attention.stop_energy.query(state.output)[:, None]
        stop = hard_monotonic(attention.stop_energy(query, memory.stop_keys)[:, 0], lengths, start)
        num_energies += size
        if int(stop) < 0:
            break
        query = attention.chunk_energy.query(state.output)[:, None]
        weights = hard_chunkwise(stop, attention.chunk_energy(query, memory.chunk_keys)[:, 0], attention.window)
        scores = decoder.score((weights[:, None] @ memory.frames)[:, 0], state.output)
        scores[:, 0] = -torch.inf
        token = scores.argmax(-1)
        state = decoder.step(token, state)
        num_tokens, check = num_tokens + 1, check + int(token * stop)
        here = here + 1 if int(stop) == int(start) else 1
        start = stop
        if here == MAX_TOKENS_PER_FRAME:  # the guard that the search has against loops
            start, here = start + 1, 0
    return _result(time.process_time() - began, num_tokens, num_energies, before, check)


def _result(seconds: float, num_tokens: int, num_energies: int, before: float, check: int) -> dict[str, Any]:
    mib = peak_mib() - before
    return {"seconds": seconds, "tokens": num_tokens, "energies": num_energies, "mib": mib, "check": check}
