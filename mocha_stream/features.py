"""Log-mel features, streaming: what is computed never depends on how the samples are cut.

The arithmetic is Kaldi's, from kaldi-native-fbank, without dither: Povey window, power spectrum,
`torchaudio.compliance.kaldi.fbank` to 1e-3. A frame needs its whole window, nothing is centred or padded.
"""

import kaldi_native_fbank as knf
import numpy as np

from .config import FeatureConfig
from .errors import AudioError


def _options(config: FeatureConfig) -> knf.FbankOptions:
    options = knf.FbankOptions()
    options.frame_opts.samp_freq = config.sample_rate
    options.frame_opts.frame_length_ms = config.window_ms
    options.frame_opts.frame_shift_ms = config.hop_ms
    options.frame_opts.dither = 0.0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = config.num_mels
    return options


class FeatureStream:
    """Samples in, log-mel frames out.

    A window that is not complete when the stream ends gives no frame, except that a stream of at least one
    sample gives at least one frame (the samples followed by silence).
    """

    def __init__(self, config: FeatureConfig):
        self.config = config
        self._fbank = knf.OnlineFbank(_options(config))
        self._num_taken = 0
        self._num_samples = 0

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """Hears (n,) float32 samples in [-1, 1] at the config's rate; returns the (T, M) frames they complete.

        Raises:
            AudioError: samples of another shape, or not finite.
        """
        if samples.ndim != 1:
            raise AudioError(f"samples have shape {samples.shape}; expected one channel, shape (n,)")
        if not np.isfinite(samples).all():
            raise AudioError("samples hold NaN or infinity; expected finite numbers in [-1, 1]")
        self._num_samples += len(samples)
        if len(samples):
            self._fbank.accept_waveform(self.config.sample_rate, np.ascontiguousarray(samples, np.float32))
        return self._take()

    def finish(self) -> np.ndarray:
        """Ends the stream and returns the (T, M) frames that are left, which is none but for very short streams."""
        if 0 < self._num_samples < self.config.window_samples:
            missing = self.config.window_samples - self._num_samples
            self._fbank.accept_waveform(self.config.sample_rate, np.zeros(missing, np.float32))
        self._fbank.input_finished()
        return self._take()

    def _take(self) -> np.ndarray:
        ready = self._fbank.num_frames_ready
        frames = np.empty((ready - self._num_taken, self.config.num_mels), np.float32)
        for i in range(len(frames)):
            frames[i] = self._fbank.get_frame(self._num_taken + i)
        self._num_taken = ready
        self._fbank.pop(len(frames))
        return frames


def log_mel(samples: np.ndarray, config: FeatureConfig) -> np.ndarray:
    """The (T, M) frames of a whole recording, (n,) float32 samples in [-1, 1] at the config's rate."""
    stream = FeatureStream(config)
    return np.concatenate([stream.feed(samples), stream.finish()])
