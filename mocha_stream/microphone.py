"""Sound from an input device, block by block, whether or not somebody recognises it. Imports no torch.

PortAudio calls back on a thread of its own, where nothing is done but to copy a block into a bounded queue. What is
lost, by the device or because the queue was full, is counted, and the next block says how much.
"""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .errors import DeviceError, MissingExtraError

MAX_CHANNELS = 2
"""Virtual devices offer dozens of channels, which hold copies of these."""
QUEUE_S = 30.0
"""Sound that waits for a slow consumer; what comes beyond it is dropped."""
GONE_S = 3.0
"""A device that gives nothing for as long has been unplugged."""
_POLL_S = 0.25


@dataclass(frozen=True)
class Device:
    """An input device."""

    index: int
    name: str
    host_api: str
    num_channels: int
    sample_rate: int
    """Its own, in Hz."""

    def __str__(self) -> str:
        return f"{self.index} {self.name} ({self.host_api})"


class Block(NamedTuple):
    samples: np.ndarray  # (n, channels) float32 in [-1, 1]
    sample_rate: int  # Hz
    lost_s: float  # sound that was lost just before
    arrived_s: float  # time.monotonic() when the last sample had come


class LossMeter:
    """Sound that a device lost, told by the clock: after a loss, all blocks come late for ever.

    Few systems flag a loss. A machine that was busy gets its blocks late too, but then it catches up; so what counts
    is the least lateness of a whole window. A smaller change may be the device's own delay, unless a loss was flagged.
    """

    WINDOW_S = 1.0
    LEAST_S, LEAST_FLAGGED_S = 0.25, 0.03

    def __init__(self) -> None:
        self._num_s = 0.0  # sound that has come or was lost
        self._usual_s = self._least_s = float("inf")  # lateness, before this window and in it
        self._window_ends_s = 0.0
        self._is_flagged = False

    def lost_s(self, arrived_s: float, block_s: float, is_flagged: bool) -> float:
        """Hears of a block of `block_s` seconds that came at `arrived_s`; returns the seconds now known to be lost."""
        self._num_s += block_s
        late_s = arrived_s - self._num_s
        self._usual_s, self._least_s = min(self._usual_s, late_s), min(self._least_s, late_s)
        self._is_flagged |= is_flagged
        if arrived_s < self._window_ends_s:
            return 0.0
        lost_s = self._least_s - self._usual_s
        is_loss = lost_s > (self.LEAST_FLAGGED_S if self._is_flagged else self.LEAST_S)
        if is_loss:
            self._num_s += lost_s
        else:
            self._usual_s = self._least_s  # the clocks of device and machine drift apart
        self._is_flagged = is_flagged and not is_loss
        self._least_s, self._window_ends_s = float("inf"), arrived_s + self.WINDOW_S
        return lost_s if is_loss else 0.0


class Microphone:
    """An open input device. Iterate over it for its blocks, in order, until `stop` is called.

    Raises while iterating:
        DeviceError: the device is gone; after the blocks that it gave.
    """

    def __init__(self, device: Device, block_ms: int):
        self.device, self.num_channels = device, min(MAX_CHANNELS, device.num_channels)
        self.num_overflows = 0
        """Times that the system said it had lost sound."""
        self.num_dropped = 0
        """Blocks that found the queue full."""
        self._block_s = block_ms / 1000
        self._blocks: queue.Queue[Block] = queue.Queue(max(2, round(QUEUE_S / self._block_s)))
        self._losses = LossMeter()
        self._lost_s = 0.0  # since the last block in the queue
        self._stopped = threading.Event()
        self._stream = self._open()

    def stop(self) -> None:
        """Hears no more; the iteration ends after the blocks that wait. From any thread or signal handler."""
        self._stopped.set()

    def close(self) -> None:
        self._stream.close(ignore_errors=True)

    def __iter__(self) -> Iterator[Block]:
        silent_s, is_gone = 0.0, False
        while not (self._stopped.is_set() or is_gone):
            try:
                yield self._blocks.get(timeout=_POLL_S)
                silent_s = 0.0
            except queue.Empty:
                silent_s += _POLL_S  # by polls, not by the clock: this process may have been suspended
                is_gone = not self._stream.active or silent_s >= GONE_S + self._block_s
        self._stream.abort(ignore_errors=True)
        while not self._blocks.empty():
            yield self._blocks.get()
        if self._lost_s:
            nothing = np.zeros((0, self.num_channels), np.float32)
            yield Block(nothing, self.device.sample_rate, self._lost_s, time.monotonic())
        if is_gone:
            raise DeviceError(f"{self.device}: gives no more sound; it was unplugged or its sound server ended")

    def _open(self) -> Any:
        sounddevice = _sounddevice()
        try:
            stream = sounddevice.InputStream(
                device=self.device.index,
                channels=self.num_channels,
                samplerate=self.device.sample_rate,
                blocksize=max(1, round(self.device.sample_rate * self._block_s)),
                dtype="float32",
                callback=self._hear,
            )
            stream.start()
        except sounddevice.PortAudioError as error:
            reason = str(error).replace("\n", " ")
            raise DeviceError(
                f"{self.device}: cannot be opened ({reason}); it may be in use by another program, or not allowed to"
                " this one"
            ) from None
        return stream

    def _hear(self, samples: np.ndarray, num_samples: int, _: Any, status: Any) -> None:
        """Called by PortAudio for every block; must return long before the next one."""
        arrived_s, block_s = time.monotonic(), num_samples / self.device.sample_rate
        self.num_overflows += bool(status.input_overflow)
        self._lost_s += self._losses.lost_s(arrived_s, block_s, status.input_overflow)
        try:
            self._blocks.put_nowait(Block(samples.copy(), self.device.sample_rate, self._lost_s, arrived_s))
            self._lost_s = 0.0
        except queue.Full:
            self.num_dropped += 1
            self._lost_s += block_s


@contextmanager
def microphone(device: int | str | None = None, block_ms: int = 100) -> Iterator[Microphone]:
    """An input device, by its index or a part of its name (default: the system's), at its own rate.

    >>> with microphone() as blocks:
    ...     for block in blocks:
    ...         print(block.sample_rate, block.samples.shape)

    Raises:
        DeviceError: no such device, or it cannot be opened; while iterating, it is gone.
        MissingExtraError: PortAudio is not installed.
    """
    opened = Microphone(find_device(device), block_ms)
    try:
        yield opened
    finally:
        opened.close()


def list_devices() -> str:
    """The input devices, one a line; a star marks the default.

    Raises:
        DeviceError: there are none.
        MissingExtraError: PortAudio is not installed.
    """
    devices, default = _input_devices()
    rows = [("", "#", "name", "system", "channels", "rate")]
    for device in devices:
        place = "*" if device.index == default else "", str(device.index), device.name, device.host_api
        rows.append((*place, str(device.num_channels), f"{device.sample_rate} Hz"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def find_device(wanted: int | str | None) -> Device:
    """The input device with this index or with this in its name; the system's default for None.

    Raises:
        DeviceError: none or several of them, or no input device at all.
        MissingExtraError: PortAudio is not installed.
    """
    devices, default = _input_devices()
    everything = "input devices: " + "; ".join(map(str, devices))
    if wanted is None or isinstance(wanted, int) or wanted.isdecimal():
        index = default if wanted is None else int(wanted)
        for device in devices:
            if device.index == index:
                return device
        if wanted is None:
            raise DeviceError(f"there is no default input device; choose one of the {everything}")
        raise DeviceError(f"device {index} is no input device; {everything}")
    name = wanted.lower()
    found = [device for device in devices if name == device.name.lower()]
    found = found or [device for device in devices if name in f"{device.name} ({device.host_api})".lower()]
    if len(found) == 1:
        return found[0]
    if not found:
        raise DeviceError(f"no input device has {wanted!r} in its name; {everything}")
    raise DeviceError(f"{wanted!r} may be any of {'; '.join(map(str, found))}; give the number or more of the name")


def _input_devices() -> tuple[list[Device], int]:
    """All input devices, and the index of the default one or -1."""
    sounddevice = _sounddevice()
    try:
        apis = [api["name"] for api in sounddevice.query_hostapis()]
        devices = [
            Device(
                each["index"],
                each["name"],
                apis[each["hostapi"]],
                each["max_input_channels"],
                round(each["default_samplerate"]),
            )
            for each in sounddevice.query_devices()
            if each["max_input_channels"] > 0
        ]
    except sounddevice.PortAudioError as error:
        raise DeviceError(f"the input devices cannot be listed ({error})") from None
    if not devices:
        raise DeviceError("there is no input device; plug a microphone in, or start the sound server")
    return devices, int(sounddevice.default.device[0])


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError:
        raise MissingExtraError("the microphone needs sounddevice: pip install sounddevice") from None
    except OSError:
        raise MissingExtraError("the microphone needs PortAudio: apt-get install libportaudio2") from None
    return sounddevice
