"""A recording is whole whatever ends the program, and however long it gets."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile

from mocha_stream.errors import MochaError
from mocha_stream.recording import WavRecorder, _header

RATE = 48_000


def test_what_is_kept(tmp_path):
    samples = np.random.default_rng(0).uniform(-1, 1, (RATE, 2)).astype(np.float32)
    with WavRecorder(tmp_path / "a.wav", RATE) as recorder:
        for block in np.split(samples, 10):
            recorder.write(block)
        recorder.write_silence(1.5)
        recorder.write(np.float32([[2.0], [-2.0]]))
        recorder.write(np.zeros((0, 2), np.float32))
    kept, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert soundfile.info(tmp_path / "a.wav").subtype == "PCM_16"
    assert (rate, kept.shape) == (RATE, (RATE * 5 // 2 + 2,))
    np.testing.assert_allclose(kept[:RATE], samples.mean(1), atol=0.6 / 32768)
    assert not kept[RATE:-2].any()
    np.testing.assert_allclose(kept[-2:], [1, -1], atol=1e-4)


def test_killed(tmp_path):
    program = """
import sys, time, numpy as np
from pathlib import Path
from mocha_stream.recording import WavRecorder
with WavRecorder(Path(sys.argv[1]), 16_000) as recorder:
    for _ in range(1000):
        recorder.write(np.full((1600, 1), 0.5, np.float32))
        print(flush=True)
        time.sleep(0.1)
"""
    path = tmp_path / "a.wav"
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as process:
        for _ in range(35):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
    kept, rate = soundfile.read(path)
    assert 2.4 <= len(kept) / rate <= 3.6
    np.testing.assert_allclose(kept, 0.5)


def test_beyond_4_gib(tmp_path):
    path, num_samples = tmp_path / "a.wav", 3 * 2**30
    with path.open("wb") as file:
        file.write(_header(RATE, 2 * num_samples))
        file.truncate(80 + 2 * num_samples)  # takes no room on the disk
    assert soundfile.info(path).frames == num_samples
    assert soundfile.info(path).format == "RF64"


def test_the_file_is_whole_from_the_start(tmp_path):
    with WavRecorder(tmp_path / "a.wav", RATE):
        assert soundfile.info(tmp_path / "a.wav").frames == 0


def test_cannot_be_written(tmp_path):
    with pytest.raises(MochaError, match=r"missing/a.wav: cannot be written \(No such file or directory\); choose"):
        WavRecorder(tmp_path / "missing" / "a.wav", RATE)


def test_disk_full(tmp_path, monkeypatch):
    recorder = WavRecorder(tmp_path / "a.wav", RATE)

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
    with pytest.raises(MochaError, match="No space left"):
        recorder.write(np.zeros((RATE, 1), np.float32))
