"""Capture: nothing is lost silently, every trouble is one clear line, and a callback is shorter than its block."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import fake_sounddevice
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mocha_stream.microphone
from mocha_stream.cli import main
from mocha_stream.errors import DeviceError, MissingExtraError
from mocha_stream.microphone import Block, LossMeter, Microphone, find_device, list_devices, microphone


@pytest.fixture
def sound(monkeypatch):
    return fake_sounddevice.install(monkeypatch)


def heard_s(blocks: list[Block]) -> float:
    return sum(len(block.samples) / block.sample_rate + block.lost_s for block in blocks)


# Devices


def test_list(sound):
    assert list_devices().splitlines() == [
        "   #  name           system  channels  rate",
        "   1  USB Audio      ALSA    1         48000 Hz",
        "*  2  USB Audio Pro  ALSA    2         44100 Hz",
        "   3  pulse          JACK    32        48000 Hz",
    ]


def test_list_without_torch():
    program = "import sys; from mocha_stream.cli import main; main(['devices']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("wanted", "index"),
    [(None, 2), (1, 1), ("1", 1), ("usb audio", 1), ("pro", 2), ("PULSE", 3), ("jack", 3), ("Pro (ALSA)", 2)],
)
def test_find(sound, wanted, index):
    assert find_device(wanted).index == index


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("USB", "'USB' may be any of 1 USB Audio (ALSA); 2 USB Audio Pro (ALSA); give the number or more of the name"),
        ("webcam", "no input device has 'webcam' in its name; input devices: 1 USB Audio (ALSA); 2 USB"),
        ("speakers", "no input device has 'speakers' in its name"),
        (0, "device 0 is no input device; input devices: 1 USB"),
        ("9", "device 9 is no input device"),
        (-1, "device -1 is no input device"),
    ],
)
def test_find_fails(sound, wanted, message):
    with pytest.raises(DeviceError) as caught:
        find_device(wanted)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_default(sound):
    sound.default.device = [-1, 0]
    with pytest.raises(DeviceError, match="no default input device; choose one of the input devices: 1 USB Audio"):
        find_device(None)


@pytest.mark.parametrize("command", ["devices", "live"])
def test_no_devices(sound, capsys, command):
    sound.devices = [fake_sounddevice.DEVICES[0]]
    assert main([command]) == 2
    assert capsys.readouterr().err.startswith("mocha-stream: there is no input device; plug")


def test_no_sounddevice(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MissingExtraError, match="pip install sounddevice"):
        list_devices()


def test_no_portaudio(monkeypatch, tmp_path, capsys):
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    assert main(["devices"]) == 2
    assert capsys.readouterr().err == "mocha-stream: the microphone needs PortAudio: apt-get install libportaudio2\n"


# Capture


@pytest.mark.parametrize(("device", "channels", "rate"), [(1, 1, 48_000), (2, 2, 44_100), (3, 2, 48_000)])
def test_opens_as_the_device_is(sound, device, channels, rate):
    with microphone(device, block_ms=20) as opened:
        (stream,) = sound.streams
        assert stream.options["device"] == device
        assert (stream.options["channels"], stream.options["samplerate"]) == (channels, rate)
        assert stream.options["blocksize"] == rate // 50
        stream.say(0.5)
        block = next(iter(opened))
        assert (block.samples.shape, block.samples.dtype) == ((rate // 50, channels), np.float32)
        assert block.sample_rate == rate
        assert time.monotonic() - block.arrived_s < 1
    assert stream.is_closed


def test_blocks_come_whole_and_in_order(sound):
    with microphone() as opened:
        for value in range(50):
            sound.streams[0].say(value / 100)
        opened.stop()
        blocks = list(opened)
    assert [float(block.samples[0, 0]) for block in blocks] == pytest.approx([value / 100 for value in range(50)])
    assert all((block.samples == block.samples[0, 0]).all() and block.lost_s == 0 for block in blocks)
    assert (opened.num_dropped, opened.num_overflows) == (0, 0)
    assert not sound.streams[0].active


def test_a_full_queue_drops_nothing_silently(sound, monkeypatch):
    monkeypatch.setattr(mocha_stream.microphone, "QUEUE_S", 0.5)
    with microphone(block_ms=100) as opened:
        stream, blocks = sound.streams[0], iter(opened)
        for _ in range(8):
            stream.say(0.1)
        heard = [next(blocks) for _ in range(2)]
        stream.say(0.2)  # the first that finds room again
        for _ in range(4):
            stream.say(0.3)  # one more, then none
        opened.stop()
        heard += list(blocks)
    assert [round(block.lost_s, 3) for block in heard] == [0, 0, 0, 0, 0, 0.3, 0, 0.3]
    assert len(heard[-1].samples) == 0
    assert heard_s(heard) == pytest.approx(1.3)
    assert opened.num_dropped == 6


def test_a_slow_consumer_is_told_what_it_missed(sound, monkeypatch):
    monkeypatch.setattr(mocha_stream.microphone, "QUEUE_S", 0.05)
    with microphone(block_ms=10) as opened, ThreadPoolExecutor() as pool:

        def speak():
            for _ in range(100):
                sound.streams[0].say()
                time.sleep(0.001)
            opened.stop()

        speaking, heard = pool.submit(speak), []
        for block in opened:
            heard.append(block)
            time.sleep(0.01)
        speaking.result()
    assert heard_s(heard) == pytest.approx(1.0)
    assert 0 < opened.num_dropped == round(sum(block.lost_s for block in heard) / 0.01)


def test_unplugged(sound):
    with microphone() as opened:
        blocks = iter(opened)
        sound.streams[0].say()
        sound.streams[0].say()
        sound.streams[0].active = False
        next(blocks)
        next(blocks)
        with pytest.raises(DeviceError, match=r"2 USB Audio Pro \(ALSA\): gives no more sound; it was unplugged"):
            next(blocks)


def test_a_device_that_falls_silent(sound, monkeypatch):
    monkeypatch.setattr(mocha_stream.microphone, "GONE_S", 0.3)
    with microphone() as opened, pytest.raises(DeviceError, match="gives no more sound"):
        list(opened)


def test_refused(sound, capsys):
    def refuse(**options):
        raise fake_sounddevice.PortAudioError("Device unavailable\n[PaErrorCode -9985]")

    sound.InputStream = refuse
    with pytest.raises(DeviceError) as caught, microphone("pulse"):
        pass
    assert str(caught.value).startswith("3 pulse (JACK): cannot be opened (Device unavailable [PaErrorCode -9985]); it")


def test_a_callback_is_shorter_than_its_block(sound):
    taken_s = []
    with microphone(block_ms=10) as opened:
        for _ in range(2000):
            begun_s = time.perf_counter()
            sound.streams[0].say()
            taken_s.append(time.perf_counter() - begun_s)
        opened.stop()
        assert len(list(opened)) == 2000
    assert np.percentile(taken_s, 99) < 0.001


# Losses that nobody flags


def lost(arrivals_s: list[float], flagged: set[int] = frozenset(), block_s: float = 0.1) -> float:
    meter = LossMeter()
    return sum(meter.lost_s(arrived_s, block_s, i in flagged) for i, arrived_s in enumerate(arrivals_s))


def steady(num_blocks: int, drift: float = 0.0) -> np.ndarray:
    return 1000 + 0.1 * np.arange(1, num_blocks + 1) * (1 + drift)


@given(st.integers(0, 2**32 - 1))
def test_late_blocks_are_not_lost(seed):
    late_s = np.random.default_rng(seed).uniform(0, 0.2, 600) * (np.arange(600) % 5 != 0)
    assert lost(list(np.maximum.accumulate(steady(600) + late_s))) == 0


def test_a_stalled_machine_catches_up():
    arrivals = steady(600)
    for first, num_late in ((100, 40), (203, 7), (350, 200)):
        arrivals[first : first + num_late] = arrivals[first + num_late]
    assert lost(list(arrivals)) == 0


@pytest.mark.parametrize("drift", [-2e-4, 0, 2e-4])
def test_clocks_that_drift_apart_lose_nothing(drift):
    assert lost(list(steady(36_000, drift))) == 0


@pytest.mark.parametrize("gap_s", [0.4, 3.0, 3600.0])
@pytest.mark.parametrize("first", [1, 100, 105])
def test_a_gap_is_measured(gap_s, first):
    arrivals = steady(300)
    arrivals[first:] += gap_s
    assert lost(list(arrivals)) == pytest.approx(gap_s, abs=0.01)


def test_a_small_gap_counts_if_it_is_flagged():
    arrivals = steady(300)
    arrivals[100:] += 0.08
    assert lost(list(arrivals)) == 0
    assert lost(list(arrivals), flagged={100}) == pytest.approx(0.08, abs=0.01)
    assert lost(list(steady(300)), flagged={0, 50, 100}) == 0


def test_losses_reach_the_consumer(sound, monkeypatch):
    clock = [50.0]
    monkeypatch.setattr(mocha_stream.microphone.time, "monotonic", lambda: clock[0])
    opened = Microphone(find_device(1), block_ms=100)
    for number in range(60):
        clock[0] += 2.1 if number == 30 else 0.1
        sound.streams[0].say(overflow=number == 30)
    blocks = [opened._blocks.get() for _ in range(60)]
    assert opened.num_overflows == 1
    assert heard_s(blocks) == pytest.approx(8.0, abs=0.01)
    (at,) = [number for number, block in enumerate(blocks) if block.lost_s]
    assert 30 <= at <= 51
