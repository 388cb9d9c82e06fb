"""What a larger model makes of the training recordings, frame by frame, for `loss.teacher`.

A folder holds `teacher.json` and, for each corpus, a pair of files as `data.py` keeps features in;
`recipes/librispeech/teacher.py` writes one.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ..config import from_dict
from ..encoders.frontend import Frontend
from ..errors import DataError
from ..writers import write_whole
from .data import Example, feature_statistics, read_beside

POINTS = 3
"""Times within an encoder frame at which the teacher is asked."""


@dataclass(frozen=True)
class TeacherConfig:
    """What `teacher.json` says of the frames beside it."""

    model: str
    width: int
    first_s: float
    """The middle of the first frame, from the start of the recording."""
    frame_s: float
    """From one frame to the next."""


def write_config(folder: Path, config: TeacherConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "teacher.json", json.dumps(asdict(config), indent=1) + "\n")


class Teacher:
    """The frames in a folder, as what an encoder should know of the same times, for features `hop_s` apart.

    Raises:
        DataError: no such folder.
    """

    def __init__(self, folder: Path, hop_s: float):
        try:
            values = json.loads((folder / "teacher.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder / 'teacher.json'}: cannot be read ({error}); write it by recipes/librispeech/teacher.py"
            ) from None
        self.folder, self.hop_s = folder, hop_s
        self.config = from_dict(TeacherConfig, values, str(folder / "teacher.json"))
        self.size = POINTS * self.config.width
        """Numbers about one encoder frame."""
        self._mean, self._deviation = np.zeros(1, np.float32), np.ones(1, np.float32)

    def add_to(self, corpus: Path, examples: list[Example]) -> list[Example]:
        """The examples of a corpus with their teacher's frames. Raises DataError where the folder lacks them."""
        frames = read_beside(corpus, self.folder, self.config.width, "teacher.py")
        return [replace(example, teacher=frames[example.id]) for example in examples]

    def measure(self, examples: list[Example]) -> None:
        """Takes the mean and deviation of each number from these examples; `targets` are normalised with them."""
        self._mean, self._deviation = feature_statistics([example.teacher for example in examples if example.teacher])

    def targets(self, item: list[Example]) -> np.ndarray:
        """(S, size): at `POINTS` times of each encoder frame of the examples, one after the other, the normalised
        frames of the teacher around it, interpolated.

        A time later than the last frame of a teacher has what that frame has; and so has the silence at the end.
        """
        ends = np.cumsum([example.num_frames for example in item])
        num_points = POINTS * -(-ends[-1] // Frontend.stride)
        at = (np.arange(num_points) + 0.5) * Frontend.stride / POINTS  # in features
        which = np.minimum(np.searchsorted(ends, at, "right"), len(item) - 1)
        parts = []
        for i, example in enumerate(item):
            assert example.teacher is not None
            here = at[which == i] - (ends[i] - example.num_frames) + example.first
            at_s = here * self.hop_s * example.speed
            parts.append(self._at(example.teacher.load(), at_s))
        return ((np.concatenate(parts) - self._mean) / self._deviation).reshape(-1, self.size)

    def _at(self, frames: np.ndarray, at_s: np.ndarray) -> np.ndarray:
        """What a teacher's frames say at these times."""
        place = np.clip((at_s - self.config.first_s) / self.config.frame_s, 0, len(frames) - 1)
        before = np.minimum(place.astype(int), max(0, len(frames) - 2))
        after = np.minimum(before + 1, len(frames) - 1)
        share = (place - before).astype(np.float32)[:, None]
        return frames[before] * (1 - share) + frames[after] * share
