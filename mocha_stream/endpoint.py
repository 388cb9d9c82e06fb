"""Where an utterance ends: at a pause that the model itself hears.

A frame is silent when neither a token stops there nor CTC hears one. An utterance ends when its trailing silence has
lasted long enough; the longer it has been going on, the shorter a pause will do. It is never cut by a clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EndpointRule:
    pause_s: float = 0.8
    """Trailing silence that ends an utterance."""
    long_s: float = 15.0
    """From this duration on, `long_pause_s` will do."""
    long_pause_s: float = 0.4
    fresh_s: float = 5.0
    """In longer silence, the encoder starts afresh this often, so that it never drifts."""

    def ends(self, silence_s: float, utterance_s: float) -> bool:
        return silence_s >= (self.pause_s if utterance_s < self.long_s else self.long_pause_s)
