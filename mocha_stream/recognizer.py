"""What a user holds: a `Recognizer` has the weights and no state, a `Session` has the state and no weights.

So one recognizer serves many sessions, from several threads, and a session is dropped by forgetting it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .audio import MonoStream, stream_audio
from .batch import recognise
from .beam import BeamSearch
from .config import BeamConfig
from .endpoint import EndpointRule, SilenceGate
from .errors import AudioError, ConfigError
from .features import FeatureStream
from .model import MochaModel
from .model_folder import load_model
from .search import GreedySearch, Search, Tokens
from .segment import BATCH_S
from .tokenizer import Tokenizer
from .transcript import Event, Final, Transcript
from .utterance import Utterance

BUNDLED = Path(__file__).parent / "pretrained" / "mocha-small-en"
OFFLINE_CHUNK_S = 30.0
"""Offline, a recording is heard whole up to this length, and in chunks of it beyond."""
BLOCK_S = 10.0
"""Read from a file at a time."""
SILENT_GAP_S = 5.0
"""Of a gap in the sound, heard as silence."""
RECENT_FRAMES = 8
"""Encoder frames that are heard again when the encoder starts afresh, at most: a whole number of chunks."""


class Recognizer:
    """A model that turns speech into text. Safe to use from several threads.

    >>> recognizer = Recognizer.load()
    >>> session = recognizer.session(latency_ms=640)
    """

    def __init__(self, model: MochaModel, tokenizer: Tokenizer, beam: BeamConfig | None = None):
        self.model, self.tokenizer = model.eval().by_columns(), tokenizer
        self.config = model.config
        self.search: Search = BeamSearch.load(model, tokenizer, beam) if beam else GreedySearch(model)

    @classmethod
    def load(cls, folder: Path | str | None = None, beam: BeamConfig | None = None) -> "Recognizer":
        """The model in a folder; the bundled English one by default. `beam` replaces the greedy search.

        Raises:
            ModelError: the folder is not a whole, matching model folder, or the language model cannot be used.
        """
        return cls(*load_model(Path(folder) if folder else BUNDLED), beam)

    @property
    def frame_s(self) -> float:
        """Seconds of audio per encoder frame."""
        return self.config.features.hop_s * self.model.encoder.frontend.stride

    @property
    def latencies_ms(self) -> tuple[int, ...]:
        """What the model was trained for: the longest wait for more audio, a chunk and its look ahead, milliseconds."""
        return tuple(self._chunks)

    @property
    def _chunks(self) -> dict[int, int]:
        """The encoder frames of a chunk for each latency, milliseconds."""
        encoder = self.config.encoder
        return {round(1000 * self.frame_s * (chunk + encoder.ahead(chunk))): chunk for chunk in sorted(encoder.chunks)}

    def chunk(self, latency_ms: int | None) -> int | None:
        """Encoder frames that become final at a time, None for a whole recording. Raises ConfigError as `session`."""
        if latency_ms is None:
            return None
        if latency_ms not in self.latencies_ms:
            known = ", ".join(str(latency) for latency in self.latencies_ms)
            raise ConfigError(f"latency of {latency_ms} ms; this model was trained for {known} ms, choose one of them")
        return self._chunks[latency_ms]

    def session(self, latency_ms: int | None = 640, endpoint: EndpointRule | None = None) -> "Session":
        """A new stream. `latency_ms` is one of `latencies_ms`, or None for offline accuracy on finished recordings.

        Raises:
            ConfigError: a latency that the model was not trained for.
        """
        chunk = self.chunk(latency_ms) or round(OFFLINE_CHUNK_S / self.frame_s)
        return Session(self.search, self.tokenizer, chunk, self.frame_s, endpoint or EndpointRule())

    def transcribe(
        self, source: str | Path | np.ndarray, latency_ms: int | None = None, sample_rate: int = 16_000
    ) -> Transcript:
        """The text of a file, or of (n,) or (n, channels) samples at `sample_rate` Hz.

        Raises:
            AudioError: a file that cannot be read, or samples that cannot be used.
            ConfigError: a latency that the model was not trained for.
        """
        (result,) = self.transcribe_many([source], latency_ms, sample_rate)
        if isinstance(result, AudioError):
            raise result
        return result

    def transcribe_many(
        self,
        sources: Iterable[str | Path | np.ndarray],
        latency_ms: int | None = None,
        sample_rate: int = 16_000,
        batch_s: float = BATCH_S,
    ) -> Iterator[Transcript | AudioError]:
        """The transcript of each source, or the error why there is none, in the order given.

        Sources may be many and long: they are drawn as they are needed. The results are those of `transcribe`.

        Args:
            sources: files, or samples at `sample_rate` Hz
            latency_ms: None decodes whole recordings, in batches; one of `latencies_ms` hears each as a stream would
            batch_s: seconds of audio to decode together; more is faster and takes more memory

        Raises:
            ConfigError: a latency that the model was not trained for.
        """
        recordings = (self._blocks(source, sample_rate) for source in sources)
        if latency_ms is not None:
            for blocks in recordings:
                yield self._hear(blocks, self.session(latency_ms))
            return
        for result in recognise(self.search, self.tokenizer, recordings, batch_s):
            yield result if isinstance(result, AudioError) else result.transcript

    def _blocks(self, source: str | Path | np.ndarray, sample_rate: int) -> Iterator[np.ndarray]:
        """(n,) float32 samples at the model's rate. Raises AudioError, as they are drawn."""
        if not isinstance(source, np.ndarray):
            yield from stream_audio(source, BLOCK_S, self.config.features.sample_rate)
            return
        stream = MonoStream(self.config.features.sample_rate)
        yield stream.feed(source, sample_rate)
        yield stream.finish()

    def _hear(self, blocks: Iterable[np.ndarray], session: "Session") -> Transcript | AudioError:
        try:
            events = [event for block in blocks for event in session.feed(block, self.config.features.sample_rate)]
        except AudioError as error:
            return error
        finals = [event for event in [*events, *session.finish()] if isinstance(event, Final)]
        words = tuple(word for final in finals for word in final.words)
        return Transcript(" ".join(final.text for final in finals), words, session.heard_s)


class Session:
    """One stream. Feed it samples as they come, however many at a time; read the events that they settle.

    All arithmetic runs on whole chunks, so how the samples are cut changes no token, time or text.
    """

    def __init__(
        self,
        search: Search,
        tokenizer: Tokenizer,
        chunk: int,
        frame_s: float,
        endpoint: EndpointRule,
    ):
        model = search.model
        self._model, self._tokenizer, self._chunk = model, tokenizer, chunk
        self._frame_s, self._endpoint = frame_s, endpoint
        self._search = search
        self._mono = MonoStream(model.config.features.sample_rate)
        self._features = FeatureStream(model.config.features)
        self._waiting = np.zeros((0, model.config.features.num_mels), np.float32)
        self._encoder_state = model.encoder.initial_state(1)
        # The encoder always has its look ahead waiting, once it has heard anything.
        self._num_waiting = model.config.encoder.ahead(chunk)
        self._num_needed = (chunk + self._num_waiting) * model.encoder.frontend.stride  # features, for the next frames
        # What a fresh start hears again: the last moments, in chunks that are as short, and after them what is waiting.
        self._recent_chunk = min(chunk, RECENT_FRAMES)
        num_recent = RECENT_FRAMES // self._recent_chunk * self._recent_chunk + self._num_waiting
        self._num_recent = num_recent * model.encoder.frontend.stride
        self._recent = torch.zeros(1, 0, model.config.features.num_mels)
        self._search_state = self._search.initial_state(1)
        self._num_samples = 0
        self._num_frames = 0  # encoder frames walked
        self._first_frame = 0  # of the utterance that the search is in
        self._last_sound = 0  # the first frame of the silence that lasts until now
        self._last_fresh = 0  # the frame where the encoder last started afresh
        self._utterance = Utterance(tokenizer, frame_s)
        self._gate = SilenceGate(model.config.features)
        self._num_silent = 0 if self._num_waiting else RECENT_FRAMES  # frames that the gate has just found silent
        self._is_resting = False
        self._done = False
        self.num_tokens = 0
        self._num_energies_before = self._num_forced_before = 0

    @property
    def heard_s(self) -> float:
        """Seconds of audio fed so far, less what the resampler holds back."""
        return self._num_samples / self._model.config.features.sample_rate

    @property
    def num_frames(self) -> int:
        """Encoder frames walked so far."""
        return self._num_frames

    @property
    def num_energies(self) -> int:
        """Energies that the search has evaluated so far."""
        return self._num_energies_before + int(self._search_state.num_energies)

    @property
    def num_forced(self) -> int:
        """Times that the guard against loops has pushed the attention on so far."""
        return self._num_forced_before + int(self._search_state.num_forced)

    def feed(self, block: np.ndarray, sample_rate: int = 16_000) -> list[Event]:
        """Hears a block: float32, int16 or int32, mono (n,) or (n, channels), any length, any rate from 8 to 192 kHz.

        Raises:
            AudioError: samples that cannot be used; the session goes on as if they had not been fed.
        """
        assert not self._done, "a finished session hears no more; open a new one"
        return self._hear_samples(self._mono.feed(block, sample_rate))

    def skip(self, lost_s: float) -> list[Event]:
        """Accounts for seconds of audio that were lost: they count in the times, and end the utterance like a pause.

        Only the first moments are heard, as silence, so that a long gap costs no more than a short one.
        """
        rate = self._model.config.features.sample_rate
        num_samples, frame = round(lost_s * rate), round(self._frame_s * rate)
        num_frames = max(0, num_samples - round(SILENT_GAP_S * rate)) // frame
        events = self.feed(np.zeros(num_samples - num_frames * frame, np.float32), rate)
        if num_frames:
            events += self._close()
            self._num_samples += num_frames * frame
            self._num_frames += num_frames
            self._first_frame += num_frames
        return events

    def finish(self) -> list[Event]:
        """Ends the stream and returns what was waiting for more audio."""
        events = self._hear_samples(self._mono.finish())
        self._done = True
        self._waiting = np.concatenate([self._waiting, self._features.finish()])
        events += self._hear_chunks()
        features, encoder = self._take(len(self._waiting)), self._model.encoder
        with torch.inference_mode():
            if self._rests(features):
                self._num_frames += self._num_waiting - (-features.shape[1] // encoder.frontend.stride)
            else:
                frames, state = encoder.step(features, self._encoder_state, self._chunk)
                events += self._walk(torch.cat([frames, encoder.finish(state, self._chunk)], 1))
        return events + self._close(at_end=True)

    def _hear_samples(self, samples: np.ndarray) -> list[Event]:
        self._num_samples += len(samples)
        self._waiting = np.concatenate([self._waiting, self._features.feed(samples)])
        return self._hear_chunks()

    def _hear_chunks(self) -> list[Event]:
        events: list[Event] = []
        while len(self._waiting) >= self._num_needed:
            with torch.inference_mode():
                features = self._take(self._num_needed)
                self._num_needed = self._chunk * self._model.encoder.frontend.stride
                if self._rests(features):
                    self._num_frames += self._chunk
                else:
                    frames, self._encoder_state = self._model.encoder.step(features, self._encoder_state, self._chunk)
                    events += self._walk(frames)
                self._recent = torch.cat([self._recent, features], 1)[:, -self._num_recent :]
                if not self._is_resting and self._wants_fresh_start():
                    self._start_afresh()
        return events + self._partial()

    def _rests(self, features: Tensor) -> bool:
        """Whether model and search may pass over these features: it has been silent for a while, and still is."""
        is_silent = self._gate.is_silent(torch.cat([self._recent, features], 1)[0].numpy(), features.shape[1])
        was_resting = self._is_resting
        # What is waiting to be walked has to be silent too.
        self._is_resting = is_silent and self._is_idle and self._num_silent >= RECENT_FRAMES + self._num_waiting
        self._num_silent = self._num_silent + self._chunk if is_silent else 0
        if was_resting and not self._is_resting:
            self._close()  # the search goes on from here, as if no time had passed
            self._start_afresh()
        return self._is_resting

    def _take(self, size: int) -> Tensor:
        """The next `size` features."""
        features, self._waiting = self._waiting[:size], self._waiting[size:]
        return torch.from_numpy(features)[None]

    def _walk(self, frames: Tensor) -> list[Event]:
        """Walks new encoder frames in small steps, and closes the utterance after any that completes a pause."""
        events: list[Event] = []
        for block in frames.split(min(self._chunk, 8), 1):
            tokens, self._search_state = self._search.step(block, self._search_state)
            sounds = (self._model.ctc(block)[0].argmax(-1) != 0).nonzero()[:, 0] + self._num_frames
            self._num_frames += block.shape[1]
            self._add(tokens)
            if len(tokens.token):
                sounds = torch.cat([sounds, tokens.stop + self._first_frame])
            if len(sounds):
                self._last_sound = int(sounds.max()) + 1
            if not self._is_idle and self._endpoint.ends(self._silence_s(), self._utterance_s()):
                events += self._close()
        return events

    def _add(self, tokens: Tokens) -> None:
        self._utterance.add(tokens, self._first_frame, self.heard_s)
        self.num_tokens += len(tokens.token)

    @property
    def _is_idle(self) -> bool:
        """Whether nothing has been said since the last utterance, or since the start."""
        return self._utterance.is_empty and not self._search_state.holds_tokens

    def _silence_s(self) -> float:
        return (self._num_frames - self._last_sound) * self._frame_s

    def _utterance_s(self) -> float:
        first = self._first_frame if self._utterance.is_empty else self._utterance.first_frame
        return (self._num_frames - first) * self._frame_s

    def _start_afresh(self) -> None:
        """The encoder forgets all but the last moments, which it hears again: a word may be beginning there."""
        encoder, chunk = self._model.encoder, self._recent_chunk
        rest = (self._num_waiting - self._model.config.encoder.ahead(chunk)) * encoder.frontend.stride
        begun, waiting = self._recent.split([self._recent.shape[1] - rest, rest], 1)
        _, state = encoder.step(begun, encoder.initial_state(1), chunk)
        _, self._encoder_state = encoder.step(waiting, state, self._chunk)
        self._last_fresh = self._num_frames

    def _wants_fresh_start(self) -> bool:
        """After an utterance, and now and then in silence, so that the state of the encoder never grows old."""
        # CTC hears a word as single frames, often before the attention stops: only a pause is no part of one.
        if not self._is_idle or self._silence_s() < self._endpoint.long_pause_s:
            return False
        just_closed = self._last_fresh < self._last_sound
        return just_closed or (self._num_frames - self._last_fresh) * self._frame_s >= self._endpoint.fresh_s

    def _close(self, at_end: bool = False) -> list[Event]:
        """Ends the utterance, if there is one: its last word is whole, and the search starts anew."""
        has_sound = self._last_sound > self._first_frame  # silence has no last token
        end = self._search.finish if at_end and has_sound else self._search.settle
        self._add(end(self._search_state))
        final = self._utterance.close(self.heard_s)
        self._num_energies_before += int(self._search_state.num_energies)
        self._num_forced_before += int(self._search_state.num_forced)
        self._search_state = self._search.initial_state(1)
        self._first_frame = self._num_frames
        self._utterance = Utterance(self._tokenizer, self._frame_s)
        return [final] if final else []

    def _partial(self) -> list[Event]:
        partial = self._utterance.partial(self.heard_s)
        return [partial] if partial else []
