"""Samples to words: any cutting gives the same, end points lose nothing, sessions do not disturb each other or grow."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import soundfile
import soxr
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import RATE, cuts, hearing_model, noise, random_model, silence, tokenizer

from mocha_stream.endpoint import EndpointRule, SilenceGate
from mocha_stream.errors import AudioError, ConfigError
from mocha_stream.features import log_mel
from mocha_stream.model import MochaModel
from mocha_stream.recognizer import Recognizer, Session
from mocha_stream.search import SCAN_BLOCK, GreedySearch
from mocha_stream.transcript import Event, Final, Partial, Word

NEVER = EndpointRule(pause_s=1e9, long_pause_s=1e9, fresh_s=1e9)
LATENCIES = [160, 320, None]  # without look ahead


def recognizer(model: MochaModel | None = None) -> Recognizer:
    return Recognizer(model or random_model(), tokenizer())


def with_look_ahead(latency_ms: int | None, lookahead: int) -> int | None:
    """The latency of the same chunk: it looks no further ahead than it is long."""
    return latency_ms and latency_ms + min(latency_ms, 80 * lookahead)


def hear(session: Session, samples: np.ndarray, at: list[int] | None = None, rate: int = RATE) -> list[Event]:
    events = []
    for start, end in pairwise(at or [0, len(samples)]):
        events += session.feed(samples[start:end], rate)
    return events + session.finish()


def words(events: list[Event]) -> list[Word]:
    return [word for event in events if isinstance(event, Final) for word in event.words]


def text(events: list[Event]) -> str:
    return " ".join(event.text for event in events if isinstance(event, Final))


def talk(seed: int = 0) -> np.ndarray:
    """Three utterances with pauses, 8.5 s."""
    return np.concatenate(
        [
            silence(0.5),
            noise(2, seed),
            silence(1.5),
            noise(1.3, seed + 1),
            silence(1.2),
            noise(1.5, seed + 2),
            silence(0.5),
        ]
    )


# ---------------------------------------------------------------- any cutting


@pytest.mark.parametrize("make", [random_model, hearing_model])
@pytest.mark.parametrize("lookahead", [0, 3])
@settings(deadline=None, max_examples=12)
@given(data=st.data(), latency_ms=st.sampled_from(LATENCIES), size=st.sampled_from([0, 1, 399, 5000, 60_000, 136_000]))
def test_any_cutting_of_the_samples_gives_the_same_bit_for_bit(make, lookahead, data, latency_ms, size):
    engine, samples = recognizer(make(14, lookahead=lookahead)), talk()[:size]
    latency_ms = with_look_ahead(latency_ms, lookahead)
    whole, pieces = engine.session(latency_ms), engine.session(latency_ms)
    expected = hear(whole, samples)
    events = hear(pieces, samples, data.draw(cuts(size)))
    assert words(events) == words(expected)
    assert text(events) == text(expected)
    assert whole.num_tokens == pieces.num_tokens
    assert whole.num_energies == pieces.num_energies
    assert whole.num_frames == pieces.num_frames == -(-len(log_mel(samples, engine.config.features)) // 8)
    if size == 136_000:
        assert len(words(expected)) > 4


def test_one_sample_at_a_time():
    engine, samples = recognizer(), talk()[:40_000]
    expected = hear(engine.session(160), samples)
    assert words(hear(engine.session(160), samples, list(range(len(samples) + 1)))) == words(expected)
    assert len(words(expected)) > 2


@settings(deadline=None, max_examples=8)
@given(
    data=st.data(),
    rate=st.sampled_from([8000, 11_025, 16_000, 44_100, 48_000]),
    kind=st.sampled_from(["int16", "int32", "float32", "float64", "stereo", "column"]),
)
def test_any_rate_and_kind_of_samples_in_any_cutting(data, rate, kind):
    engine = recognizer()
    samples = soxr.resample(talk()[: 3 * RATE], RATE, rate)
    if kind.startswith("int"):
        samples = (samples * np.iinfo(kind).max).astype(kind)
    elif kind == "stereo":
        samples = np.stack([samples, samples[::-1]], 1)
    elif kind == "column":
        samples = samples[:, None]
    else:
        samples = samples.astype(kind)
    expected = hear(engine.session(320), samples, rate=rate)
    events = hear(engine.session(320), samples, data.draw(cuts(len(samples))), rate)
    assert words(events) == words(expected)
    assert len(words(expected)) > 1


def test_kinds_of_the_same_sound_give_the_same_words():
    engine = recognizer()
    integers = np.round(talk()[: 3 * RATE] * 32_767).astype(np.int16)
    expected = words(hear(engine.session(160), integers))
    floats = integers / np.float32(32_768)
    for same in (floats, floats.astype(np.float64), integers.astype(np.int32) * 65_536, np.stack([floats, floats], 1)):
        assert words(hear(engine.session(160), same)) == expected
    assert expected


def test_a_change_of_rate_in_mid_stream():
    engine, samples = recognizer(), talk()
    resampled = soxr.resample(samples[RATE * 4 :], RATE, 48_000)
    found = []
    for step in (1000, 7919):
        session, events = engine.session(160), []
        for part, rate in ((samples[: RATE * 4], RATE), (resampled, 48_000)):
            for start in range(0, len(part), step):
                events += session.feed(part[start : start + step], rate)
        found.append(words(events + session.finish()))
        assert session.heard_s == pytest.approx(len(samples) / RATE, abs=1e-3)
    assert found[0] == found[1]
    assert found[0]


# ---------------------------------------------------------------- streaming and offline agree


@pytest.mark.parametrize("latency_ms", LATENCIES)
@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("on_miss", ["stop", "last"])
def test_a_session_gives_what_forward_and_search_give(latency_ms, lookahead, on_miss):
    model = random_model(lookahead=lookahead, on_miss=on_miss)
    engine, samples = recognizer(model), noise(6)
    session = engine.session(with_look_ahead(latency_ms, lookahead), NEVER)
    events = hear(session, samples, list(range(0, len(samples) + 1, 1000)))

    features = torch.from_numpy(log_mel(samples, model.config.features))[None]
    chunk = round(latency_ms / 80) if latency_ms else None
    search = GreedySearch(model)
    with torch.inference_mode():
        frames, lengths = model.encoder(features, torch.tensor([features.shape[1]]), chunk)
        tokens, state = search.step(frames, search.initial_state(1), lengths)
        last = search.finish(state)
    found = tokens.token.tolist() + last.token.tolist()
    assert text(events) == engine.tokenizer.decode(found)
    assert len(found) > 4
    ends, spelled = [], ""
    for token, stop in zip(found, [*tokens.stop.tolist(), *last.stop.tolist()], strict=True):
        spelled += engine.tokenizer.decode([token])
        if engine.tokenizer.ends_word(token):
            ends += [min((stop + 1) * 0.08, 6.0)] if spelled else []
            spelled = ""
    assert [word.end_s for word in words(events)][: len(ends)] == pytest.approx(ends)
    assert len(ends) > 1


@pytest.mark.parametrize("lookahead", [0, 1, 3])
@pytest.mark.parametrize("chunk", [2, 4])
def test_frames_are_final_once_their_chunk_and_its_look_ahead_are_heard(lookahead, chunk):
    engine = recognizer(random_model(lookahead=lookahead))
    latency_ms = 80 * (chunk + min(chunk, lookahead))
    assert engine.chunk(latency_ms) == chunk
    session, samples = engine.session(latency_ms), noise(3)
    for number in range(1, 4):
        end = RATE * (latency_ms + 80 * chunk * (number - 1) + 15) // 1000  # a window of 25 ms outlasts its hop by 15
        session.feed(samples[round(session.heard_s * RATE) : end - 1])
        assert session.num_frames == chunk * (number - 1)
        session.feed(samples[end - 1 : end])
        assert session.num_frames == chunk * number


@pytest.mark.parametrize("latency_ms", LATENCIES)
def test_transcribe_of_files_and_of_samples_agree(tmp_path, latency_ms):
    engine, samples = recognizer(), talk()
    soundfile.write(tmp_path / "a.wav", samples, RATE, subtype="FLOAT")
    expected = engine.transcribe(samples, latency_ms)
    assert len(expected.words) > 2
    for source in (tmp_path / "a.wav", str(tmp_path / "a.wav"), np.stack([samples, samples], 1)):
        assert engine.transcribe(source, latency_ms) == expected
    assert expected.duration_s == 8.5
    assert expected.text == " ".join(word.word for word in expected.words)
    if latency_ms:
        assert list(expected.words) == words(hear(engine.session(latency_ms), samples))
    soundfile.write(tmp_path / "b.wav", soxr.resample(samples, RATE, 44_100), 44_100, subtype="FLOAT")
    resampled = soundfile.read(tmp_path / "b.wav", dtype="float32")[0]
    assert engine.transcribe(tmp_path / "b.wav", latency_ms) == engine.transcribe(resampled, latency_ms, 44_100)


def test_nothing_and_next_to_nothing():
    engine = recognizer()
    assert engine.session(160).finish() == []
    for samples in (np.zeros(0), np.zeros((0, 2)), np.zeros(1), np.zeros(399, np.int16)):
        transcript = engine.transcribe(samples)
        assert transcript.text == " ".join(word.word for word in transcript.words)
        assert transcript.duration_s == len(samples) / RATE


def test_latencies_that_were_not_trained_are_refused():
    engine = recognizer()
    assert engine.latencies_ms == (160, 320)
    for latency_ms in (0, 161, 640):
        with pytest.raises(ConfigError, match="trained for 160, 320 ms"):
            engine.session(latency_ms)


# ---------------------------------------------------------------- events


def assert_append_only(events: list[Event]) -> None:
    """No word that was shown ever changes, and times never go back."""
    shown: list[Word] = []
    at_s = end_s = 0.0
    for event in events:
        assert isinstance(event, Partial | Final)
        assert event.at_s >= at_s
        at_s = event.at_s
        assert event.text == " ".join(word.word for word in event.words)
        committed = event.words[: event.num_committed] if isinstance(event, Partial) else event.words
        assert list(committed[: len(shown)]) == shown
        shown = list(committed)
        for word in event.words:
            assert 0 <= word.confidence <= 1
            assert word.word and " " not in word.word
        assert all(a.end_s <= b.start_s for a, b in pairwise(event.words))
        if isinstance(event, Final):
            assert end_s <= event.start_s == event.words[0].start_s <= event.end_s == event.words[-1].end_s
            end_s, shown = event.end_s, []
    assert not shown


@pytest.mark.parametrize("make", [random_model, hearing_model])
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 20), latency_ms=st.sampled_from(LATENCIES), step=st.integers(200, 30_000))
def test_events_are_append_only_and_finals_are_the_transcript(make, seed, latency_ms, step):
    engine, samples = recognizer(make()), talk(seed)
    events = hear(engine.session(latency_ms), samples, [*range(0, len(samples), step), len(samples)])
    assert_append_only(events)
    if latency_ms:
        assert text(events) == engine.transcribe(samples, latency_ms).text
    assert all(word.end_s <= 8.5 for word in words(events))
    assert any(isinstance(event, Partial) for event in events) == (latency_ms is not None)


def test_pauses_end_utterances_and_every_utterance_is_found_where_it_is():
    engine = recognizer(hearing_model())
    for latency_ms in LATENCIES:
        finals = [event for event in hear(engine.session(latency_ms), talk()) if isinstance(event, Final)]
        assert len(finals) == 3
        for final, (start_s, end_s) in zip(finals, [(0.5, 2.5), (4.0, 5.3), (6.5, 8.0)], strict=True):
            assert start_s - 0.4 <= final.start_s <= start_s + 0.6
            assert start_s < final.end_s <= end_s + 0.2


def test_an_utterance_does_not_depend_on_the_ones_before_it():
    """The reset at an end point is complete: the same sound gives the same words, the first token included."""
    model = hearing_model()
    assert model.encoder.context.layers[0].project.weight.abs().sum() == 0  # so the encoder hears frame by frame
    engine = recognizer(model)
    sound = np.concatenate([silence(1.28), noise(1.92, 7)])
    finals = [e for e in hear(engine.session(320), np.concatenate([*[sound] * 4, silence(1)])) if isinstance(e, Final)]
    assert len(finals) == 4
    assert finals[1].text == finals[2].text == finals[3].text
    assert len(finals[1].text) > 2
    for number, final in enumerate(finals[1:], start=1):
        assert final.start_s - finals[1].start_s == pytest.approx(3.2 * (number - 1))


def test_text_before_an_end_point_at_the_end_of_the_stream_is_kept():
    engine = recognizer(hearing_model())
    spoken = np.concatenate([noise(2), silence(0.7)])
    expected = text(hear(engine.session(160), spoken))
    assert expected
    for pause in (0.05, 0.79, 0.8, 0.81, 0.9, 2.0, 5.0, 5.01, 12.0):
        assert text(hear(engine.session(160), np.concatenate([noise(2), silence(pause)]))) == expected


@pytest.fixture(params=["gate", "no gate"])
def gated(request, monkeypatch) -> bool:
    """Whether the model rests in silence, or hears all of it: either way it finds the same."""
    if request.param == "no gate":
        monkeypatch.setattr(SilenceGate, "is_silent", lambda *_: False)
    return request.param == "gate"


@pytest.mark.parametrize("on_miss", ["stop", "last"])
def test_silence_costs_no_decoder_step_and_gives_no_event(on_miss, gated):
    model = hearing_model(on_miss=on_miss)
    session = recognizer(model).session(160)
    first = session.feed(np.concatenate([noise(2), silence(2)]))
    assert isinstance(first[-1], Final)
    steps, step = [], model.decoder.step
    model.decoder.step = lambda *inputs: steps.append(1) or step(*inputs)
    before = session.num_tokens, session.num_energies
    assert [event for _ in range(60) for event in session.feed(silence(1))] == []
    assert session.num_tokens == before[0]
    assert session.num_energies == before[1] + (0 if gated else 60 / 0.08)
    model.decoder.step = step
    again = session.feed(np.concatenate([noise(2), silence(2)]))
    assert isinstance(again[-1], Final)
    assert again[-1].start_s > 63.5
    assert session.finish() == []


def test_energies_are_at_most_frames_and_a_block_a_token():
    for make in (random_model, hearing_model):
        session = recognizer(make()).session(160)
        hear(session, talk())
        assert session.num_tokens > 10
        assert session.num_energies <= session.num_frames + SCAN_BLOCK * session.num_tokens


@pytest.mark.parametrize("lookahead", [0, 3])
@pytest.mark.parametrize("fresh_s", [0.01, 1.0])
def test_fresh_starts_lose_and_repeat_no_frame(lookahead, fresh_s, gated):
    model = hearing_model(lookahead=lookahead)
    samples = np.concatenate([silence(3), noise(1), silence(4), noise(1), silence(3)])
    for latency_ms in recognizer(model).latencies_ms:
        rule = EndpointRule(fresh_s=fresh_s)
        often, never = recognizer(model).session(latency_ms, rule), recognizer(model).session(latency_ms)
        assert text(hear(often, samples)) == text(hear(never, samples)) != ""
        assert often.num_frames == never.num_frames == 150


@pytest.mark.parametrize("lookahead", [0, 3, 30])
@pytest.mark.parametrize("chunk", [2, 4, 14])
def test_what_waits_is_heard_although_the_model_rests_in_silence(lookahead, chunk, monkeypatch):
    """Each sound, before and after a gap in the stream, as without resting."""
    engine, samples = recognizer(hearing_model(lookahead=lookahead)), []
    for seconds in (0.2, 0.3, 0.2):
        samples += [silence(6.1), noise(seconds)]
    spoken = np.concatenate([*samples, silence(6)])

    def hear_twice() -> tuple[int, int, bool]:
        session = Session(engine.search, engine.tokenizer, chunk, engine.frame_s, EndpointRule())
        events = session.feed(spoken)
        rested = session._is_resting
        events += session.skip(20.0) + session.feed(spoken) + session.finish()
        return sum(isinstance(event, Final) for event in events), session.num_frames, rested

    num_finals, num_frames, rested = hear_twice()
    assert (num_finals, rested) == (6, True)
    monkeypatch.setattr(SilenceGate, "is_silent", lambda *_: False)
    assert hear_twice() == (6, num_frames, False)


class Script(torch.nn.Module):
    """A CTC head that hears a sound at the frames it is told, and silence at all others."""

    def __init__(self, sounds: set[int], weight: torch.Tensor):
        super().__init__()
        self.sounds, self.weight, self.num_heard = sounds, weight, 0

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(1, frames.shape[1], 2)
        for i in range(frames.shape[1]):
            scores[0, i, int(self.num_heard + i in self.sounds)] = 1.0
        self.num_heard += frames.shape[1]
        return scores


def starts_afresh(sounds: set[int], seconds: float = 4.0, latency_ms: int = 160) -> list[int]:
    """Frames at which the encoder of a session starts afresh when CTC hears those sounds and attention never stops."""
    model = random_model()
    with torch.no_grad():
        model.attention.stop_energy.r.fill_(-1000.0)
    model.ctc = Script(sounds, model.ctc.weight)
    session, starts = recognizer(model).session(latency_ms), []
    before = session._encoder_state
    for _ in range(round(seconds / 0.01)):
        session.feed(noise(0.01))
        if session._encoder_state is not before and session._last_fresh not in [0, *starts]:
            starts.append(session._last_fresh)
        before = session._encoder_state
    return starts


def test_the_encoder_does_not_forget_between_two_sounds_of_one_word():
    """CTC hears tokens as single frames, and often before the attention has stopped at the first one."""
    sounds = {10, 13, 17, 21, 24}
    assert not [start for start in starts_afresh(sounds) if 10 < start <= 24]


def test_in_long_silence_the_encoder_forgets_now_and_then():
    starts = starts_afresh(set(), 12.0)
    assert len(starts) == 2
    assert all(60 <= b - a <= 66 for a, b in pairwise([0, *starts]))


# ---------------------------------------------------------------- sessions


def test_a_session_goes_on_after_a_block_that_it_refused():
    engine, samples = recognizer(), talk()
    expected = hear(engine.session(160), samples)
    session, events = engine.session(160), []
    bad = [np.full(100, np.nan), np.zeros((10, 3, 2)), np.array(["x"]), np.full(10, 30_000.0), np.zeros(4, np.int64)]
    for number, start in enumerate(range(0, len(samples), 4000)):
        with pytest.raises(AudioError) as caught:
            session.feed(bad[number % len(bad)])
        assert "\n" not in str(caught.value)
        with pytest.raises(AudioError, match="1000 Hz"):
            session.feed(samples[:10], 1000)
        events += session.feed(samples[start : start + 4000])
    assert words(events + session.finish()) == words(expected)


def test_a_session_neither_keeps_nor_writes_the_callers_block():
    engine, samples = recognizer(), talk()
    expected = words(hear(engine.session(160), samples))
    block, session, events = np.empty(1000, np.float32), engine.session(160), []
    for start in range(0, len(samples), 1000):
        block[:] = samples[start : start + 1000]
        events += session.feed(block)
        np.testing.assert_array_equal(block, samples[start : start + 1000])
        block[:] = np.nan
    assert words(events + session.finish()) == expected


def test_one_recognizer_serves_sessions_in_threads_and_in_turns():
    engine = recognizer()
    sounds = [talk(seed) for seed in range(6)]
    before = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    expected = [words(hear(engine.session(160), sound)) for sound in sounds]

    def live(sound: np.ndarray) -> list[Word]:
        return words(hear(engine.session(160), sound, [*range(0, len(sound), 700), len(sound)]))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(live, sounds)) == expected

    sessions = [engine.session(160) for _ in sounds]
    events: list[list[Event]] = [[] for _ in sounds]
    for start in range(0, len(sounds[0]), 900):
        for session, sound, found in zip(sessions, sounds, events, strict=True):
            found += session.feed(sound[start : start + 900])
    for session, found in zip(sessions, events, strict=True):
        found += session.finish()
    assert [words(found) for found in events] == expected
    for name, tensor in engine.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert len({tuple(found) for found in expected}) == 6


def test_a_finished_session_hears_no_more():
    session = recognizer().session(160)
    session.finish()
    with pytest.raises(AssertionError, match="finished"):
        session.feed(noise(1))


def num_bytes(session: Session) -> int:
    """What the session keeps alive, but for the model and the tokenizer: each storage, array and list once."""
    seen: set[int] = set()
    shared = {id(session._model), id(session._tokenizer)}

    def size(item: object) -> int:
        if id(item) in seen or id(item) in shared or isinstance(item, type | torch.nn.Module):
            return 0
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            known = storage.data_ptr() in seen
            seen.add(storage.data_ptr())
            return 0 if known else storage.nbytes()
        if isinstance(item, np.ndarray):
            return item.nbytes if item.base is None else size(item.base)
        if isinstance(item, dict):
            return sum(size(value) for value in item.values())
        if isinstance(item, list | tuple):
            return 8 * len(item) + sum(size(value) for value in item)
        if hasattr(item, "__dict__"):
            return size(vars(item))
        return 8

    return size(session)


@pytest.mark.parametrize("latency_ms", LATENCIES)
def test_the_state_of_a_session_does_not_grow(latency_ms):
    """Its size in the first minute is its size ever after."""
    session, sizes = recognizer(hearing_model()).session(latency_ms), []
    minute = np.concatenate([talk(seed) for seed in range(7)])[: 60 * RATE]
    blocks = [minute[start : start + RATE // 2] for start in range(0, len(minute), RATE // 2)]
    for number, block in enumerate([*blocks, *blocks[:60]]):
        session.feed(block)
        if number % 10 == 9:
            gc.collect()
            sizes.append(num_bytes(session))
    early, late = sizes[:12], sizes[12:]
    assert session.num_tokens > 500
    assert max(late) <= max(early) * 1.05
    assert num_bytes(session) < 1_000_000


def test_events_can_be_sent_to_other_processes():
    events = hear(recognizer().session(160), talk())
    assert pickle.loads(pickle.dumps(events)) == events
