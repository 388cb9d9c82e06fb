"""The microphone to text until Ctrl-C, with a line at the bottom of the terminal that says how it goes."""

import io
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

import numpy as np

from .errors import MochaError
from .microphone import Block, Microphone, find_device
from .recording import WavRecorder
from .transcript import Event, Final, Overflow

if TYPE_CHECKING:
    from .recognizer import Recognizer, Session

BLOCK_MS = 100
QUIETEST_DB = -60.0
"""The left end of the level meter; the right one is full scale."""
MAX_DELAYS = 100_000
"""Words, the latest ones, that the summary knows the delays of."""

Show = Callable[[Iterable[Event]], None]


def run_live(
    load: "Callable[[], Recognizer]", latency_ms: int, device: int | str | None, save: Path | None, show: Show
) -> None:
    """Shows what is spoken until Ctrl-C, then sums it up on standard error. In the main thread only.

    The model is loaded and has worked once before the device is opened. `save` names a WAV file to keep what was heard.

    Raises:
        ConfigError: a latency that the model was not trained for.
        DeviceError: as `microphone`; of a device that is gone, once the last words have been shown.
        MissingExtraError: PortAudio is not installed.
        MochaError: what was heard cannot be saved any more; once the last words have been shown.
    """
    chosen = find_device(device)  # a mistake is told before the model is loaded
    recognizer = load()
    _warm_up(recognizer.session(latency_ms=latency_ms))
    listener, failure = Listener(recognizer.session(latency_ms=latency_ms), show), None
    with ExitStack() as stack:
        stack.enter_context(_quiet_libraries())
        recorder = stack.enter_context(WavRecorder(save, chosen.sample_rate)) if save else None
        opened = Microphone(chosen, BLOCK_MS)
        stack.callback(opened.close)
        stack.enter_context(_on_interrupt(opened.stop))
        status = stack.enter_context(StatusLine())
        try:
            for i, block in enumerate(opened):
                if i == 0:  # a device that was opened takes a while to give sound; now is the time to speak
                    _say(f"listening to {chosen}, {chosen.sample_rate} Hz; Ctrl-C ends")
                listener.hear(block)
                status.show(f"{_level_meter(block)}  {listener.state()}")
                if recorder:
                    recorder.write_silence(block.lost_s)
                    recorder.write(block.samples)
        except MochaError as error:
            failure = error
        listener.finish()
    _say(f"{listener.summary()}; {opened.num_dropped} blocks dropped, {opened.num_overflows} overflows")
    if failure:
        raise failure


class Listener:
    """Feeds a session with the blocks of a microphone, and keeps account of how well that goes."""

    def __init__(self, session: "Session", show: Show):
        self._session, self._show = session, show
        self._heard_s = self._lost_s = self._busy_s = 0.0
        self._started_s = time.monotonic()  # when the first sample was spoken
        self._num_seen = 0  # words of this utterance
        self._delays_s: deque[float] = deque(maxlen=MAX_DELAYS)

    def hear(self, block: Block) -> None:
        if block.lost_s:
            self._show([Overflow(block.lost_s, self._heard_s)])
            self._lost_s += block.lost_s
            self._tell(lambda: self._session.skip(block.lost_s))
        self._heard_s += block.lost_s + len(block.samples) / block.sample_rate
        self._started_s = block.arrived_s - self._heard_s
        self._tell(lambda: self._session.feed(block.samples, block.sample_rate))

    def finish(self) -> None:
        self._tell(self._session.finish)

    def state(self) -> str:
        delay = f"{self._delays_s[-1]:.2f} s" if self._delays_s else "-"
        lost = f"  lost {self._lost_s:.1f} s" if self._lost_s else ""
        minutes, seconds = divmod(int(self._heard_s), 60)
        return f"{minutes:3}:{seconds:02}  delay {delay}{lost}"

    def summary(self) -> str:
        p50, p95 = np.percentile(self._delays_s, [50, 95]) if self._delays_s else (0.0, 0.0)
        return (
            f"heard {self._heard_s:.1f} s, lost {self._lost_s:.2f} s of them;"
            f" real-time factor {self._busy_s / max(self._heard_s, 1e-9):.3f};"
            f" delay p50 {p50:.2f} s, p95 {p95:.2f} s over {len(self._delays_s)} words"
        )

    def _tell(self, compute: Callable[[], list[Event]]) -> None:
        begun_s = time.monotonic()
        events = compute()
        self._busy_s += time.monotonic() - begun_s
        self._show(events)
        shown_s = time.monotonic() - self._started_s
        for event in events:
            if isinstance(event, Overflow):
                continue
            is_final = isinstance(event, Final)
            words = event.words if isinstance(event, Final) else event.words[: event.num_committed]
            self._delays_s += [shown_s - word.end_s for word in words[self._num_seen :]]
            self._num_seen = 0 if is_final else len(words)


class StatusLine:
    """The bottom line of the terminal, which the text scrolls above. Nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._size = os.terminal_size((0, 0))
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._size.lines:  # all lines scroll again
            self._write(f"\0337\033[r\033[{self._size.lines};1H\033[2K\0338")

    def show(self, text: str) -> None:
        if not self._is_shown:
            return
        size = shutil.get_terminal_size()
        if size != self._size:  # make room for it, should the cursor be there; then all lines above it scroll
            self._size = size
            self._write(f"\n\0337\033[1;{size.lines - 1}r\0338\033[1A")
        self._write(f"\0337\033[{size.lines};1H\033[2K\033[2m{text[: size.columns]}\033[0m\0338")

    def _write(self, codes: str) -> None:
        sys.stderr.write(codes)
        sys.stderr.flush()


def _level_meter(block: Block, width: int = 20) -> str:
    power = float(np.mean(np.square(block.samples))) if block.samples.size else 0.0
    level_db = 10 * np.log10(max(power, 1e-12))
    filled = round(width * float(np.clip(1 - level_db / QUIETEST_DB, 0, 1)))
    return f"[{'#' * filled}{' ' * (width - filled)}]"


def _say(message: str) -> None:
    print(f"mocha-stream: {message}", file=sys.stderr, flush=True)


def _warm_up(session: "Session") -> None:
    """The first arithmetic is slow; noise puts it behind us before a device waits for it."""
    noise = np.random.default_rng(0).standard_normal(2 * 16_000).astype(np.float32)
    session.feed(0.1 * noise, 16_000)
    session.finish()


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C stops in good order, a second one at once."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """PortAudio and ALSA tell their troubles on file descriptor 2; only what Python says gets through from here on."""
    python = sys.stderr
    try:
        is_plain = python.fileno() == 2
    except io.UnsupportedOperation:  # standard error is captured
        is_plain = False
    if not is_plain:
        yield
        return
    python.flush()
    kept = os.dup(2)
    with open(kept, "w", encoding=python.encoding, errors="backslashreplace", buffering=1) as sys.stderr:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        os.close(nothing)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            sys.stderr.flush()
    sys.stderr = python
