"""The live command with a device that the test drives: order, troubles, Ctrl-C, the status line."""

import asyncio
import io
import os
import signal
import sys

import fake_recognizer
import fake_sounddevice
import numpy as np
import pytest
import soundfile

import mocha_stream.live
from mocha_stream.cli import main
from mocha_stream.errors import ConfigError, DeviceError, MochaError
from mocha_stream.live import StatusLine, run_live
from mocha_stream.microphone import microphone
from mocha_stream.transcript import Event, Final, Overflow


@pytest.fixture
def sound(monkeypatch):
    return fake_sounddevice.install(monkeypatch)


@pytest.fixture
def talk(sound, monkeypatch):
    """`talk(num_blocks, last)`: once opened, the device gives that many blocks, then `last(stream)` happens."""
    start = fake_sounddevice.FakeStream.start

    def begin(num_blocks, last):
        def start_and_speak(stream):
            start(stream)
            for _ in range(num_blocks):
                stream.say(0.1)
            last(stream)

        monkeypatch.setattr(fake_sounddevice.FakeStream, "start", start_and_speak)

    return begin


def unplug(stream):
    stream.active = False


def run(save=None, show=None, load=fake_recognizer.Recognizer.load) -> list[Event]:
    events = []
    run_live(load, 640, None, save, show or events.extend)
    return events


def interrupt_at(num_words: int, events: list[Event]):
    """Shows events by keeping them, and presses Ctrl-C once there are so many words."""

    def show(new):
        events.extend(new)
        if any(event.words[-1].word == f"WORD{num_words - 1}" for event in new if not isinstance(event, Overflow)):
            signal.raise_signal(signal.SIGINT)

    return show


def finals(events: list[Event]) -> str:
    return " ".join(event.text for event in events if isinstance(event, Final))


def test_interrupt_finalises_the_last_words(talk, sound, capsys):
    talk(47, lambda stream: None)
    events, before = [], signal.getsignal(signal.SIGINT)
    run(show=interrupt_at(2, events))
    assert finals(events) == "WORD0 WORD1 WORD2 WORD3"  # all that was waiting when it came
    assert signal.getsignal(signal.SIGINT) is before
    assert sound.streams[0].is_closed
    first, last = capsys.readouterr().err.splitlines()
    assert first == "mocha-stream: listening to 2 USB Audio Pro (ALSA), 44100 Hz; Ctrl-C ends"
    assert last.startswith("mocha-stream: heard 4.7 s, lost 0.00 s of them; real-time factor 0.0")
    assert "s over 4 words; 0 blocks dropped, 0 overflows" in last


def test_a_second_interrupt_ends_at_once(talk, sound):
    talk(100, lambda stream: None)
    events = []

    def show(new):
        events.extend(new)
        if new:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(show=show)
    assert finals(events) == ""
    assert sound.streams[0].is_closed


def test_unplugged_finalises_the_last_words_first(talk, capsys, monkeypatch):
    talk(25, unplug)
    monkeypatch.setitem(sys.modules, "mocha_stream.recognizer", fake_recognizer)
    assert main(["live"]) == 2
    output = capsys.readouterr()
    assert output.out == "WORD0 WORD1\n"
    assert output.err.splitlines()[1].startswith("mocha-stream: heard 2.5 s")
    assert output.err.splitlines()[2].startswith("mocha-stream: 2 USB Audio Pro (ALSA): gives no more sound;")
    assert len(output.err.splitlines()) == 3


def test_the_device_is_opened_last(talk, sound):
    talk(1, unplug)
    seen = []

    def load():
        seen.append(("load", len(sound.streams)))
        return fake_recognizer.Recognizer()

    with pytest.raises(DeviceError):
        run(load=load)
    assert seen == [("load", 0)]
    assert len(sound.streams) == 1


def test_mistakes_are_told_before_the_device_is_opened(sound):
    class Strict(fake_recognizer.Recognizer):
        def session(self, latency_ms=640):
            raise ConfigError("latency of 640 ms; this model was trained for 320 ms")

    with pytest.raises(ConfigError, match="trained for 320 ms"):
        run(load=Strict)
    with pytest.raises(DeviceError, match="no input device has 'webcam'"):
        run_live(lambda: pytest.fail("the model was loaded"), 640, "webcam", None, print)
    assert not sound.streams


def test_lost_sound_counts_in_the_times(talk, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(mocha_stream.microphone, "QUEUE_S", 1.0)
    talk(24, unplug)  # ten blocks find room
    events = []
    with pytest.raises(DeviceError):
        run(show=events.extend, save=tmp_path / "a.wav")
    (overflow,) = [event for event in events if isinstance(event, Overflow)]
    assert (overflow.at_s, overflow.lost_s) == (pytest.approx(1.0), pytest.approx(1.4))
    assert finals(events) == "WORD0 WORD1"
    assert "heard 2.4 s, lost 1.40 s of them" in capsys.readouterr().err
    assert soundfile.info(tmp_path / "a.wav").duration == pytest.approx(2.4)


def test_saved(talk, tmp_path):
    talk(15, unplug)
    with pytest.raises(DeviceError):
        run(save=tmp_path / "a.wav")
    kept, rate = soundfile.read(tmp_path / "a.wav")
    assert (rate, len(kept)) == (44_100, 66_150)
    np.testing.assert_allclose(kept, 0.1, atol=1e-4)


def test_cannot_be_saved(talk, sound, tmp_path):
    with pytest.raises(MochaError, match=r"missing/a.wav: cannot be written"):
        run(save=tmp_path / "missing" / "a.wav")
    assert not sound.streams


def test_disk_full(talk, tmp_path, monkeypatch):
    def fail(*_):
        raise MochaError("a.wav: cannot be written (No space left on device); choose another place")

    talk(15, unplug)
    monkeypatch.setattr(mocha_stream.live.WavRecorder, "write_silence", fail)
    events = []
    with pytest.raises(MochaError, match="No space left"):
        run(save=tmp_path / "a.wav", show=events.extend)
    assert len(events) <= 1


# Without the command


def test_from_asyncio(talk):
    async def listen(session, opened):
        blocks = iter(opened)
        while block := await asyncio.to_thread(next, blocks, None):
            for event in await asyncio.to_thread(session.skip, block.lost_s):
                yield event
            for event in await asyncio.to_thread(session.feed, block.samples, block.sample_rate):
                yield event
        for event in await asyncio.to_thread(session.finish):
            yield event

    async def hear() -> list[Event]:
        with microphone() as opened:
            opened.stop()  # what it gave at once is heard
            return [event async for event in listen(fake_recognizer.Recognizer().session(), opened)]

    talk(25, lambda stream: None)
    assert finals(asyncio.run(hear())) == "WORD0 WORD1"


# Screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_status_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    size = [os.terminal_size((40, 12))]
    monkeypatch.setattr(mocha_stream.live.shutil, "get_terminal_size", lambda: size[0])
    with StatusLine() as status:
        for number in range(3):
            status.show(f"level {number} {'x' * 100}")
        size[0] = os.terminal_size((60, 20))
        status.show("larger")
    written = sys.stderr.getvalue()
    assert written.count("\n") == 2  # room for the line, once a size
    assert written.count("\033[1;11r") == written.count("\033[1;19r") == written.count("\033[r") == 1
    assert f"\033[12;1H\033[2K\033[2m{'level 2 '.ljust(40, 'x')}\033[0m" in written
    assert written.count("\0337") == written.count("\0338")  # the cursor always returns to the text


@pytest.mark.parametrize(("terminal", "kind"), [(io.StringIO(), "xterm"), (Terminal(), "dumb")])
def test_no_status_line(monkeypatch, terminal, kind):
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(sys, "stderr", terminal)
    with StatusLine() as status:
        status.show("level")
    assert terminal.getvalue() == ""
