"""Training as a whole: it learns real speech, and neither a kill nor a second process changes what it does."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from tiny import RATE, noise, sentences

from mocha_stream.config import to_toml
from mocha_stream.corpus import Utterance
from mocha_stream.errors import AudioError, ConfigError, DataError, MochaError
from mocha_stream.model_folder import load_model
from mocha_stream.recognizer import Recognizer
from mocha_stream.training.data import corpus_name, write_cache
from mocha_stream.training.recipe import read_recipe
from mocha_stream.training.teacher import TeacherConfig, write_config
from mocha_stream.training.trainer import Trainer, average_weights, train

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "extra" / "an4"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from mocha_stream.training.trainer import train
if __name__ == "__main__":
    train(Path(sys.argv[1]), resume=len(sys.argv) > 2)
"""


def made_up_speech(folder: Path, count: int) -> Path:
    """A manifest of noise that passes for speech where nothing has to be understood."""
    folder.mkdir()
    entries = []
    for number, line in enumerate(sentences(count)):
        soundfile.write(folder / f"{number}.wav", noise(0.4 + number % 7 / 10, number), RATE)
        entries.append({"path": f"{number}.wav", "text": line, "speaker": str(number % 3)})
    (folder / "set.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    write_config(folder / "teacher", TeacherConfig("any", 6, 0.0, 0.03))
    write_cache(folder / "set.jsonl", folder / "teacher" / corpus_name(folder / "set.jsonl"), any_frames, 1)
    write_cache(folder / "set.jsonl", folder / "words" / corpus_name(folder / "set.jsonl"), any_words, 1)
    return folder / "set.jsonl"


def any_frames(utterance: Utterance) -> np.ndarray:
    """A teacher that says as much of an utterance as nothing."""
    return np.random.default_rng(list(utterance.id.encode())).standard_normal((20, 6)).astype(np.float16)


def any_words(utterance: Utterance) -> np.ndarray:
    """Words of 50 ms each, one after the other."""
    starts = 5 * np.arange(len(utterance.text.split()))
    return np.stack([starts, starts + 5], 1).astype(np.float16)


def write_recipe(folder: Path, train_set: Path, dev_set: Path | None = None, **tables: dict) -> Path:
    teacher = train_set.parent / "teacher"
    values = {
        "run": "run",
        "data": {
            "train": [str(train_set)],
            "dev": str(dev_set or train_set),
            "cache": "cache",
            "speeds": [1.0, 1.1],
            "join": 0.2,
            "splice": 0.3 if teacher.exists() else 0.0,
            "words": str(train_set.parent / "words"),
            "text": ["text.txt"],
            "text_lines": 5,
            "teacher": str(teacher),
            "dev_utterances": 4,
        },
        "model": {
            "vocab_size": 40,
            "features": {"num_mels": 16},
            "encoder": {"width": 12, "hidden": 10, "num_layers": 2, "chunks": [2, 4], "dropout": 0.2},
            "attention": {"width": 8},
            "decoder": {"width": 10, "embedding": 8},
        },
        "loss": {"synchrony": 0.1, "synchrony_from": 0.5, "text": 0.3, "teacher": 0.2 if teacher.exists() else 0.0},
        "training": {
            "epochs": 3,
            "batch_s": 4.0,
            "warmup_steps": 4,
            "average": 2,
            "checkpoint_steps": 3,
            "picture_epochs": 100,
            "bfloat16": False,
        },
    }
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    (folder / "text.txt").write_text("\n".join(["", *sentences(9)]))
    path = folder / "recipe.toml"
    path.write_text(to_toml(values))
    return path


def log(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path.parent / "run" / "log.jsonl").read_text().splitlines()]


def losses(path: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in log(path)}


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Path:
    return made_up_speech(tmp_path_factory.mktemp("speech") / "set", 36)


@pytest.fixture(scope="module")
def undisturbed(speech, tmp_path_factory) -> Path:
    """The recipe of a run that nothing has happened to."""
    path = write_recipe(tmp_path_factory.mktemp("undisturbed"), speech)
    train(path)
    assert len(log(path)) > 15
    return path


# ---------------------------------------------------------------- what a run leaves


def test_a_run_leaves_a_log_checkpoints_and_a_model(undisturbed):
    run, steps = undisturbed.parent / "run", log(undisturbed)
    assert [line["step"] for line in steps] == list(range(len(steps)))
    assert {line["epoch"] for line in steps} == {1, 2, 3}
    assert {line["chunk"] for line in steps} == {0, 2, 4}
    assert all(0 <= line["accuracy"] <= 1 and 0 <= line["mass"] <= 1.001 for line in steps)
    assert any(line["synchrony"] > 0 for line in steps if line["epoch"] == 3)
    assert not any(line["synchrony"] for line in steps if line["epoch"] == 1)
    assert steps[-1]["text"] < steps[0]["text"] < 4
    assert all(line["teacher"] > 0 for line in steps)
    assert steps[-1]["learning_rate"] < steps[5]["learning_rate"]
    assert len(list(run.glob("checkpoint-*.pt"))) == 2
    assert len(list(run.glob("epoch-*.safetensors"))) == 2
    epochs = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert all(line["wer_chunks"] >= 0 and line["wer_ctc_whole"] >= 0 for line in epochs)
    recognizer = Recognizer.load(run / "model")
    assert recognizer.config.encoder.chunks == (2, 4)
    recognizer.transcribe(noise(1))
    assert "word error rate" in (run / "model" / "README.md").read_text().lower()
    assert not list(run.rglob("*.part"))


def test_schedules_are_kept(speech, tmp_path):
    """The rate is held for half of the run; until then nothing is changed and no noise is at its full height."""
    path = write_recipe(tmp_path, speech)
    schedules = ["training.hold=0.5", "loss.noise_rise=0.5", "augment.start=0.5", "training.epochs=2"]
    train(path, assignments=[*schedules, "loss.discount=0.1", "loss.delay_limit=2", "loss.synchrony=0.0"])
    scheduled = log(path)
    rates = [line["learning_rate"] for line in scheduled if line["epoch"] == 1][4:]
    assert len(rates) > 2 and len(set(rates)) == 1
    assert scheduled[-1]["learning_rate"] < rates[0] / 2
    assert all(np.isfinite(line["loss"]) and line["gradient_norm"] > 0 for line in scheduled)
    # The first update of a run that hears what was recorded, without noise, discount or limit, differs by the discount.
    plain = {"gain_db": 0.0, "warp": 0.0, "frequency_masks": 0, "time_masks_per_s": 0.0}
    train(path, assignments=["training.epochs=1", "loss.noise=0.0", *(f"augment.{k}={v}" for k, v in plain.items())])
    unchanged = losses(path)
    train(path, assignments=["training.epochs=1", "loss.noise=0.0", "augment.end=0.0"])
    assert losses(path) == unchanged
    first = log(path)[0]
    assert scheduled[0]["ctc"] == first["ctc"] and scheduled[0]["teacher"] == first["teacher"]
    assert scheduled[0]["mass"] < first["mass"]


def test_conditions_follow_the_part_of_the_run(speech, tmp_path):
    changes = ["loss.noise=2.0", "loss.noise_rise=0.5", "loss.synchrony_from=0.5", "loss.delay_limit=3"]
    recipe = read_recipe(write_recipe(tmp_path, speech), [*changes, "augment.start=0.5", "loss.teacher=0"])
    trainer = Trainer(recipe, tmp_path, 0, 1, torch.device("cpu"))
    conditions = [trainer._conditions(progress) for progress in (0.0, 0.75, 1.4, 1.5, 3.0)]
    assert [c.noise for c in conditions] == pytest.approx([0, 1, 2 * 1.4 / 1.5, 2, 2])
    assert [c.delay_limit for c in conditions] == [None, None, None, 3, 3]
    assert [c.synchronous for c in conditions] == [False, False, False, True, True]
    items = [[group[0]] for group in trainer.variants[:2]]
    recorded, changed = (trainer._load(items, changed).features for changed in (False, True))
    np.testing.assert_array_equal(recorded[0, : items[0][0].num_frames], items[0][0].load())
    assert not torch.equal(recorded, changed)


def test_the_same_recipe_does_the_same_again(undisturbed, speech, tmp_path):
    path = write_recipe(tmp_path, speech)
    train(path, assignments=["training.epochs=3", "name=again"])
    assert losses(path) == losses(undisturbed)


def test_averaged_weights(tmp_path):
    from safetensors.torch import save_file

    for number in range(3):
        save_file({"a": torch.full((2,), float(number)), "b": torch.ones(1)}, tmp_path / f"{number}.safetensors")
    averaged = average_weights(sorted(tmp_path.glob("*.safetensors")))
    assert averaged["a"].tolist() == [1, 1]
    assert averaged["b"].tolist() == [1]


# ---------------------------------------------------------------- kill and resume


def start(path: Path, *words: str) -> subprocess.Popen:
    with (path.parent / "output").open("w") as output:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), *words], env=ENVIRONMENT, stderr=output)


def kill_after(process: subprocess.Popen, path: Path, step: int) -> None:
    """kill -9 once that many steps are in the log."""
    file, due = path.parent / "run" / "log.jsonl", time.monotonic() + 120
    while not file.exists() or file.read_bytes().count(b"\n") <= step:
        assert process.poll() is None, (path.parent / "output").read_text()
        assert time.monotonic() < due
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_kill_9_in_mid_epoch_then_resume_changes_no_later_loss(undisturbed, speech, tmp_path):
    path, expected = write_recipe(tmp_path, speech), losses(undisturbed)
    assert len(expected) > 15
    kill_after(start(path), path, 4)  # in the first epoch
    done = losses(path)
    assert 4 < len(done) < len(expected)
    assert all(expected[step] == loss for step, loss in done.items())
    train(path, resume=True)
    assert losses(path) == expected
    for name in ("epoch-0002.safetensors", "epoch-0003.safetensors", "model/model.safetensors"):
        assert (path.parent / "run" / name).read_bytes() == (undisturbed.parent / "run" / name).read_bytes()
    epochs = [json.loads(line)["epoch"] for line in (path.parent / "run" / "epochs.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]


def test_what_a_kill_leaves_half_written_does_not_hinder(undisturbed, speech, tmp_path):
    """A torn last line of the logs, a checkpoint under its temporary name, and one that the disk has lost half of."""
    path, expected = write_recipe(tmp_path, speech), losses(undisturbed)
    kill_after(start(path), path, len(expected) // 2)
    run = path.parent / "run"
    with (run / "log.jsonl").open("a") as file:
        file.write('{"loss": 3.1')
    newest = sorted(run.glob("checkpoint-*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    (run / "checkpoint-00000099.part").write_bytes(b"half")
    train(path, resume=True)
    assert losses(path) == expected


def test_a_new_run_in_the_same_folder_forgets_the_old_one(undisturbed, speech, tmp_path):
    path = write_recipe(tmp_path, speech, training={"epochs": 1})
    train(path)
    train(path, assignments=["training.epochs=3", "model.vocab_size=41"])
    run = path.parent / "run"
    epochs = [json.loads(line)["epoch"] for line in (run / "epochs.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]
    assert Recognizer.load(run / "model").config.vocab_size == 41


def test_a_finished_run_may_be_resumed(undisturbed):
    before = losses(undisturbed)
    train(undisturbed, resume=True)
    assert losses(undisturbed) == before


@pytest.mark.parametrize("before, after", [(0.2, 0.0), (0.0, 0.2)])
def test_a_run_is_not_resumed_with_or_without_a_teacher_that_it_had_not(speech, tmp_path, before, after):
    path = write_recipe(tmp_path, speech, training={"epochs": 1})
    train(path, assignments=[f"loss.teacher={before}"])
    with pytest.raises(DataError, match="of another model than the recipe's; start without --resume"):
        train(path, resume=True, assignments=[f"loss.teacher={after}"])


# ---------------------------------------------------------------- two processes


@pytest.mark.slow
def test_two_processes_or_batches_in_parts_give_the_same_losses(speech, tmp_path):
    plain = {
        "loss": {"noise": 0.0, "consistency": 0.2},
        "training": {"epochs": 2, "batch_s": 12.0},
    }
    paths = []
    for number in (1, 2, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths.append(write_recipe(folder, speech, **plain))
        text = paths[-1].read_text().replace("dropout = 0.2", "dropout = 0.0")
        paths[-1].write_text(text.replace("embedding = 8", "embedding = 8\ndropout = 0.0"))
    train(paths[0])
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*command, str(tmp_path / "program.py"), str(paths[1])], env=ENVIRONMENT, check=True, timeout=300)
    train(paths[2], assignments=["training.accumulate=3"])
    one, two, parts = (log(path) for path in paths)
    assert len(one) == len(two) == len(parts) > 8
    for a, *others in zip(one, two, parts, strict=True):
        for name, b in product(a.keys() - {"seconds"}, others):
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-4), (a["step"], name)
        assert a["consistency"] > 0
    assert Recognizer.load(paths[1].parent / "run" / "model")


# ---------------------------------------------------------------- learning


@pytest.mark.slow
def test_it_learns_six_recordings_by_heart_and_a_recognizer_says_them(tmp_path):
    """Features, training, model folder and recognition, in one: real speech in, its text out."""
    if not DATA.is_dir():
        if "CI" in os.environ:
            pytest.fail(f"{DATA} is missing")
        pytest.skip(f"{DATA} is not here")
    from mocha_stream.corpus import read_corpus

    spoken = [item for item in read_corpus(DATA) if 2 <= len(item.text.split()) <= 6][::60][:6]
    assert len({item.text for item in spoken}) == 6
    for name, repeats in (("train", 12), ("dev", 1)):
        lines = [
            {"path": str(item.path), "text": item.text, "id": f"{item.id}-{i}"}
            for item in spoken
            for i in range(repeats)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = write_recipe(
        tmp_path,
        tmp_path / "train.jsonl",
        tmp_path / "dev.jsonl",
        data={"speeds": [1.0], "join": 0.0, "dev_utterances": 6},
        model={
            "vocab_size": 40,
            "features": {"num_mels": 40},
            "encoder": {"width": 64, "hidden": 48, "num_layers": 1, "chunks": [4, 8], "dropout": 0.0},
            "attention": {"width": 64},
            "decoder": {"width": 64, "embedding": 32, "dropout": 0.0},
        },
        augment={"gain_db": 1.0, "warp": 0.0, "frequency_masks": 0, "time_masks_per_s": 0.0},
        loss={"noise": 0.5, "synchrony": 0.1, "synchrony_from": 0.3, "text": 0.0},
        training={"epochs": 24, "batch_s": 8.0, "warmup_steps": 20, "learning_rate": 5e-3, "checkpoint_steps": 1000},
    )
    recognizer = Recognizer.load(train(path))
    steps = log(path)
    assert steps[-1]["loss"] < steps[0]["loss"] / 4
    wrong = 0
    for latency_ms in (None, 320, 640):
        for item in spoken:
            wrong += recognizer.transcribe(item.path, latency_ms).text != item.text
    assert wrong <= 2


# ---------------------------------------------------------------- what cannot be used


def assert_refused(path: Path, kind: type[MochaError], message: str, **options) -> None:
    with pytest.raises(kind) as caught:
        train(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mistakes_are_told_in_one_line_before_any_work(speech, tmp_path):
    path = write_recipe(tmp_path, speech)
    assert_refused(tmp_path / "missing.toml", ConfigError, "No such file")
    assert_refused(path, ConfigError, "did you mean 'learning_rate'?", assignments=["training.learning_rat=1"])
    assert_refused(path, ConfigError, "model: encoder: unknown setting 'widht'", assignments=["model.encoder.widht=1"])
    assert_refused(path, DataError, "holds no checkpoint to resume from", resume=True)
    assert_refused(path, ConfigError, "data.text names no text", assignments=["data.text=[]"])
    assert_refused(path, DataError, "nothing.txt: cannot be read", assignments=['data.text=["nothing.txt"]'])
    assert_refused(path, DataError, "missing: does not exist", assignments=["data.dev=missing"])
    assert not list((tmp_path / "cache").glob("*"))
    assert_refused(path, DataError, "missing: does not exist", assignments=['data.train=["missing"]'])
    assert_refused(path, ConfigError, "vocab_size is 9000", assignments=["model.vocab_size=9000"])
    assert_refused(path, DataError, "no utterance lasts", assignments=["data.shortest_s=20.0"])
    assert_refused(path, DataError, "none.txt: cannot be read", assignments=['tokenizer.text=["none.txt"]'])


def test_a_recording_that_cannot_be_read_is_named(tmp_path):
    manifest = made_up_speech(tmp_path / "set", 6)
    (tmp_path / "set" / "3.wav").write_text("Call me Ishmael.")
    assert_refused(write_recipe(tmp_path, manifest), AudioError, "3.wav: is not audio")


def test_a_checkpoint_of_another_model_is_told(undisturbed):
    assert_refused(undisturbed, DataError, "checkpoint", resume=True, assignments=["model.encoder.width=16"])


def test_a_run_may_begin_with_a_model(undisturbed, speech, tmp_path):
    path = write_recipe(tmp_path, speech, training={"epochs": 1, "learning_rate": 1e-9, "batch_s": 4.0})
    model = undisturbed.parent / "run" / "model"
    train(path, assignments=[f'init="{model}"', "model.encoder.chunks=[2]", "model.encoder.dropout=0.0"])
    weights = [load_model(folder)[0].state_dict() for folder in (model, path.parent / "run" / "model")]
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*(w.values() for w in weights), strict=True))
    for other in ("model.encoder.hidden=11", "model.features.hop_ms=12.5"):
        message = "weights or features do not fit [model]"
        assert_refused(path, ConfigError, message, assignments=[f'init="{model}"', other])


def test_the_same_id_in_two_corpora_is_two_utterances(speech, tmp_path):
    manifest = made_up_speech(tmp_path / "twins", 6)
    other = tmp_path / "twins" / "other.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    other.write_text("".join(json.dumps({**line, "text": "ZEBRA " + line["text"]}) + "\n" for line in lines))
    path = write_recipe(tmp_path, manifest, data={"train": [str(speech), str(manifest), str(other)]})
    plain = ["data.join=0.0", "data.splice=0.0", "data.speeds=[1.0]", "loss.teacher=0.0"]
    train(path, assignments=["training.epochs=1", *plain])
    heard = sum(line["audio_s"] for line in log(path))
    seconds = [soundfile.info(item).duration - 0.015 for item in (tmp_path / "twins").glob("*.wav")]
    once = [soundfile.info(item).duration - 0.015 for item in speech.parent.glob("*.wav")]
    assert heard == pytest.approx(2 * sum(seconds) + sum(once), rel=0.05)


def test_utterances_without_text_do_no_harm(speech, tmp_path):
    manifest = made_up_speech(tmp_path / "set", 8)
    lines = manifest.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "text": "1984"})
    manifest.write_text("\n".join(lines))
    path = write_recipe(tmp_path, manifest, data={"dev_utterances": 8}, training={"epochs": 1})
    train(path, assignments=["model.vocab_size=35", "loss.teacher=0.0", "data.splice=0.0"])
    assert len(log(path)) > 1
