"""A teacher: its frames at the times of the encoder's, and the loss that has the encoder follow them."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from tiny import RATE, noise, random_model

from mocha_stream.errors import ConfigError, DataError
from mocha_stream.training.data import Example
from mocha_stream.training.losses import Batch, Conditions, compute, teacher_loss
from mocha_stream.training.teacher import Teacher, TeacherConfig, write_config

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "librispeech"
CONFIG = TeacherConfig("a clock", 2, 0.028, 0.024)


@pytest.fixture
def teacher(tmp_path) -> Teacher:
    write_config(tmp_path, CONFIG)
    return Teacher(tmp_path, 0.01)


def frames(values: np.ndarray, speed: float = 1.0, teacher: Example | None = None) -> Example:
    return Example("id", "TEXT", "speaker", speed, len(values), 0, values.astype(np.float16), teacher)


def clock(duration_s: float, speed: float) -> Example:
    """An utterance of so many seconds once its speed is changed; its teacher says twice what time it was before."""
    times = np.arange(CONFIG.first_s, duration_s * speed, CONFIG.frame_s)
    told = frames(np.stack([times, times], 1))
    return frames(np.zeros((round(duration_s * 100), 3)), speed, told)


@pytest.mark.parametrize("speed", [0.9, 1.0, 1.1])
def test_targets_are_what_the_teacher_says_at_thirds_of_a_frame(teacher, speed):
    told = teacher.targets([clock(2.0, speed)])
    assert told.shape == (25, 6)
    expected = (np.arange(75) + 0.5) * 0.08 / 3 * speed
    expected = expected.clip(CONFIG.first_s, 2.0 * speed - CONFIG.frame_s)
    np.testing.assert_allclose(told.reshape(75, 2), np.stack([expected, expected], 1), atol=0.03)
    np.testing.assert_allclose(told.reshape(75, 2)[2:72], np.stack([expected, expected], 1)[2:72], atol=2e-3)


def test_utterances_that_follow_each_other_have_a_teacher_each(teacher):
    """The second one begins within an encoder frame of the first one: 50 features are 6 frames and a quarter."""
    told = teacher.targets([clock(0.5, 1.0), clock(0.5, 1.1)]).reshape(-1, 2)[:, 0]
    assert len(told) == 3 * 13
    at = (np.arange(39) + 0.5) * 8 / 3
    first, second = told[at < 50], told[at >= 50]
    np.testing.assert_allclose(first[2:-2], at[at < 50][2:-2] / 100, atol=2e-3)
    np.testing.assert_allclose(second[2:-5], (at[at >= 50][2:-5] - 50) / 100 * 1.1, atol=2e-3)


def test_targets_are_normalised_with_what_was_measured(teacher):
    random = np.random.default_rng(0)
    examples = [frames(np.zeros((400, 3)), 1.0, frames(random.normal([3, -5], [2, 0.5], (170, 2)))) for _ in range(20)]
    teacher.measure(examples)
    told = np.concatenate([teacher.targets([example]) for example in examples]).reshape(-1, 2)
    np.testing.assert_allclose(told.mean(0), 0, atol=0.1)
    assert (told.std(0) > 0.5).all() and (told.std(0) < 1).all()  # what is interpolated varies less


def test_a_teacher_of_one_frame(teacher):
    assert teacher.targets([frames(np.zeros((9, 3)), 1.0, frames(np.array([[1.0, 2.0]])))]).tolist() == [[1, 2] * 3] * 2


def test_the_loss_is_the_mean_square_within_the_rows():
    predicted, told = torch.zeros(2, 3, 4), torch.ones(2, 3, 4)
    told[0, 1] = 3.0
    assert teacher_loss(predicted, told, torch.tensor([2, 0])).item() == 1 + 9
    assert teacher_loss(predicted, told, torch.tensor([1, 3])).item() == 1 + 3


def test_the_encoder_learns_from_it():
    model = random_model().eval()
    imitate = torch.nn.Linear(model.config.encoder.width, 5)
    batch = Batch(torch.randn(2, 40, 16), torch.tensor([40, 24]), torch.ones(2, 3).long(), torch.tensor([3, 2]))
    plain = compute(model, batch, Conditions(), imitate)[0]
    taught = compute(model, batch._replace(teacher=torch.randn(2, 5, 5)), Conditions(), imitate)[0]
    assert plain.teacher == 0 < taught.teacher
    assert plain[:5] == taught[:5]
    taught.teacher.backward()
    assert model.encoder.frontend.convs[0].conv.weight.grad.any()
    assert model.decoder.output.weight.grad is None


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(DataError, match=r"teacher\.json: cannot be read .*recipes/librispeech/teacher\.py"):
        Teacher(tmp_path, 0.01)
    (tmp_path / "teacher.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"teacher\.json"):
        Teacher(tmp_path, 0.01)
    write_config(tmp_path, CONFIG)
    with pytest.raises(DataError, match=r"some-corpus\.jsonl: not there; run recipes/librispeech/teacher\.py"):
        Teacher(tmp_path, 0.01).add_to(tmp_path / "some" / "corpus", [])


# ---------------------------------------------------------------- the recipe's script


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.delitem(sys.modules, "teacher", raising=False)
    import teacher as script

    return script


def test_the_script_names_the_package_that_it_needs(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)
    monkeypatch.setattr(sys, "argv", ["teacher.py", str(tmp_path), str(tmp_path)])
    assert script.main() == 2
    assert capsys.readouterr().err.startswith("teacher: moonshine_voice is not installed: pip install ")
    assert not list(tmp_path.iterdir())


def test_the_script_asks_the_encoder_for_frames(script, monkeypatch, tmp_path):
    """With a stand-in for onnxruntime, which is large: the frames, as float16, of the samples at 16 kHz."""
    asked = []

    def run(names, inputs):
        asked.append(inputs)
        return [np.full((1, inputs["input_values"].shape[1] // 384, 288), 0.5, np.float32)]

    monkeypatch.setattr(script, "session", lambda: SimpleNamespace(run=run))
    soundfile.write(tmp_path / "a.wav", noise(1.0, 1), RATE)
    found = script.hear(SimpleNamespace(path=tmp_path / "a.wav"))
    assert found.shape == (41, 288) and found.dtype == np.float16
    assert asked[0]["input_values"].shape == asked[0]["attention_mask"].shape == (1, RATE)
    assert script.CONFIG.frame_s == 0.024
