"""Hours of sound, with the model that comes along: times that do not drift, silence that costs little, any format."""

import time

import jiwer
import numpy as np
import pytest
import soxr
from benchmarks.memory import resident_mib
from test_cli import SPEECH, needs_model
from test_live_sound import recordings

from mocha_stream.audio import read_audio
from mocha_stream.corpus import read_corpus
from mocha_stream.recognizer import Recognizer, Session
from mocha_stream.transcript import Event, Final, Word

pytestmark = [pytest.mark.slow, needs_model]

RATE = 16_000


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return Recognizer.load()


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """Two recordings, between silences of 3 s, at 16 kHz."""
    silence = np.zeros(3 * RATE, np.float32)
    return np.concatenate([silence, *(part for path in recordings(2) for part in (read_audio(path), silence))])


def feed(session: Session, samples: np.ndarray, rate: int = RATE) -> list[Event]:
    size = rate // 10
    return [event for at in range(0, len(samples), size) for event in session.feed(samples[at : at + size], rate)]


def words(events: list[Event]) -> list[Word]:
    return [word for event in events if isinstance(event, Final) for word in event.words]


def test_an_hour_later(recognizer, speech):
    """The same words at the same times, although the device runs at 44.1 kHz; and no more memory."""
    session, rate = recognizer.session(), 44_100
    spoken = soxr.resample(speech, RATE, rate)
    minute = np.zeros(60 * rate, np.float32)
    first = words(feed(session, spoken, rate))
    for silence in (minute[len(spoken) :], minute):
        feed(session, silence, rate)
    before_mib = resident_mib()
    for _ in range(62):
        assert not feed(session, minute, rate)
    later = words(feed(session, spoken, rate))
    assert resident_mib() < before_mib + 5
    assert [word.word for word in later] == [word.word for word in first]
    offsets = [
        [after.start_s - word.start_s, after.end_s - word.end_s] for word, after in zip(first, later, strict=True)
    ]
    np.testing.assert_allclose(offsets, 64 * 60, atol=0.05)


@pytest.mark.parametrize("level", [0.0, 1e-3])
def test_silence(recognizer, speech, level):
    session, noise = recognizer.session(), np.random.default_rng(0)
    assert words(feed(session, speech))
    begun_s = time.process_time()
    for _ in range(10):
        assert not feed(session, np.float32(level * noise.standard_normal(60 * RATE)))
    assert time.process_time() - begun_s < 0.02 * 600


FORMATS = {
    "int16": lambda samples: (np.int16(np.clip(samples, -1, 1) * 32767), RATE),
    "stereo": lambda samples: (np.stack([1.2 * samples, 0.8 * samples], 1), RATE),
    **{
        f"{rate} Hz": lambda samples, rate=rate: (soxr.resample(samples, RATE, rate), rate)
        for rate in (8000, 44_100, 48_000, 96_000)
    },
}


@pytest.mark.skipif(not SPEECH.exists(), reason="no ../shared/data")
def test_formats(recognizer):
    """At 8 kHz, as the same sound at 16 kHz: above 4 kHz there is none."""
    said = {utterance.path: utterance.text for utterance in read_corpus(SPEECH)[::2]}

    def wer(convert) -> float:
        converted = [convert(read_audio(path)) for path in said]
        rate = converted[0][1]
        heard = recognizer.transcribe_many((samples for samples, _ in converted), sample_rate=rate)
        return 100 * jiwer.wer(list(said.values()), [result.text for result in heard])

    narrow = wer(lambda samples: (soxr.resample(soxr.resample(samples, RATE, 8000), 8000, RATE), RATE))
    whole = wer(lambda samples: (samples, RATE))
    found = {name: wer(convert) for name, convert in FORMATS.items()}
    expected = {name: narrow if name == "8000 Hz" else whole for name in FORMATS}
    print(whole, narrow, found)
    assert found == {name: pytest.approx(value, abs=1.0) for name, value in expected.items()}
