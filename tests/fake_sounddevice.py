"""Devices without a sound system."""

import sys
import types

import numpy as np


class PortAudioError(Exception):
    pass


class FakeStream:
    """A device that is driven by the test: `say` calls back as PortAudio does, from a buffer that it uses again."""

    def __init__(self, **options):
        self.options, self.active, self.is_closed = options, False, False
        self.callback, self.num_samples = options["callback"], options["blocksize"]
        self.buffer = np.zeros((self.num_samples, options["channels"]), np.float32)

    def start(self):
        self.active = True

    def abort(self, ignore_errors=False):
        self.active = False

    def close(self, ignore_errors=False):
        self.active, self.is_closed = False, True

    def say(self, value: float = 0.0, overflow: bool = False):
        self.buffer[:] = value
        self.callback(self.buffer, len(self.buffer), None, types.SimpleNamespace(input_overflow=overflow))


def entry(index: int, name: str, channels: int, rate: float = 48_000.0, api: int = 0) -> dict:
    return {
        "index": index,
        "name": name,
        "hostapi": api,
        "max_input_channels": channels,
        "default_samplerate": rate,
    }


DEVICES = [
    entry(0, "Speakers", 0),
    entry(1, "USB Audio", 1),
    entry(2, "USB Audio Pro", 2, 44_100.0),
    entry(3, "pulse", 32, api=1),
]


def install(monkeypatch) -> types.ModuleType:
    """Takes the place of sounddevice: `devices` and `default` may be changed, `streams` are those that were opened."""
    fake = types.ModuleType("sounddevice")
    fake.devices, fake.streams, fake.PortAudioError = list(DEVICES), [], PortAudioError
    fake.default = types.SimpleNamespace(device=[2, 0])

    def open_stream(**options):
        fake.streams.append(FakeStream(**options))
        return fake.streams[-1]

    fake.query_devices = lambda: fake.devices
    fake.query_hostapis = lambda: ({"name": "ALSA"}, {"name": "JACK"})
    fake.InputStream = open_stream
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return fake
