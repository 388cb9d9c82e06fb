"""Model folders: what is saved is loaded, and a folder that is not whole is told in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import TEXT, noise, random_model, silence, tokenizer

from mocha_stream.errors import ModelError
from mocha_stream.model_folder import load_model, save_model
from mocha_stream.recognizer import Recognizer
from mocha_stream.tokenizer import Tokenizer

SOUND = np.concatenate([silence(0.5), noise(3)])


@pytest.fixture
def folder(tmp_path) -> Path:
    save_model(random_model(), tokenizer(), tmp_path / "model", "# A model\n", torch.float32)
    return tmp_path / "model"


@pytest.mark.parametrize("kind", ["highway_bilstm", "star_transformer"])
@pytest.mark.parametrize("energy", ["dot", "additive"])
def test_what_is_saved_is_loaded(tmp_path, kind, energy):
    model = random_model(kind=kind, energy=energy)
    save_model(model, tokenizer(), tmp_path / "a" / "b", "card", torch.float32)
    loaded, units = load_model(tmp_path / "a" / "b")
    assert loaded.config == model.config
    assert units.pieces == tokenizer().pieces
    assert not loaded.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    expected = Recognizer(model, tokenizer()).transcribe(SOUND)
    assert expected.words
    assert Recognizer.load(tmp_path / "a" / "b").transcribe(SOUND) == expected
    assert (tmp_path / "a" / "b" / "README.md").read_text() == "card"


def test_int8_on_disk_is_off_by_half_a_step_at_most(tmp_path):
    model = random_model()
    with torch.no_grad():
        model.ctc.weight[3] = 0  # a row without a largest weight
    save_model(model, tokenizer(), tmp_path / "int8", "card", torch.int8)
    save_model(model, tokenizer(), tmp_path / "full", "card", torch.float32)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("int8", "full")]
    assert sizes[0] < 0.6 * sizes[1]  # a quarter, but for the vectors and names of a small model
    loaded, _ = load_model(tmp_path / "int8")
    for name, tensor in loaded.state_dict().items():
        original = model.state_dict()[name]
        assert tensor.dtype == torch.float32
        if tensor.dim() < 2:
            assert torch.equal(tensor, original)
        else:
            step = original.flatten(1).abs().amax(1) / 127
            assert ((tensor - original).flatten(1).abs().amax(1) <= step * 0.501).all(), name
    # Saved once more, nothing is lost again.
    save_model(loaded, tokenizer(), tmp_path / "again", "card", torch.int8)
    for name, tensor in load_model(tmp_path / "again")[0].state_dict().items():
        torch.testing.assert_close(tensor, loaded.state_dict()[name], rtol=1e-6, atol=0)


def test_a_step_that_does_not_fit_its_matrix_is_told(tmp_path):
    save_model(random_model(), tokenizer(), tmp_path, "card", torch.int8)
    weights = load_file(tmp_path / "model.safetensors")
    for spoiled in (weights["ctc.weight.scale"][1:], weights["ctc.weight.scale"][:, None]):
        save_file({**weights, "ctc.weight.scale": spoiled.contiguous()}, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=r"weight ctc\.weight\.scale has shape"):
            load_model(tmp_path)
    save_file({k: v for k, v in weights.items() if k != "ctc.weight.scale"}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"weight ctc\.weight holds what is no finite number"):
        load_model(tmp_path)


def test_float16_on_disk_is_float32_in_memory_and_nearly_the_same(tmp_path):
    model = random_model()
    save_model(model, tokenizer(), tmp_path / "half", "card", torch.float16)
    save_model(model, tokenizer(), tmp_path / "full", "card", torch.float32)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.7 * sizes[1]
    loaded, _ = load_model(tmp_path / "half")
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-3, atol=1e-6)
    assert torch.equal(loaded.encoder.frontend.mean, model.encoder.frontend.mean)
    # Saved once more, nothing is lost again.
    save_model(loaded, tokenizer(), tmp_path / "again", "card", torch.float16)
    again, _ = load_model(tmp_path / "again")
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


def test_the_model_in_memory_does_not_hang_on_the_file(folder):
    model, _ = load_model(folder)
    before = model.ctc.weight.clone()
    shutil.rmtree(folder)
    assert torch.equal(model.ctc.weight, before)
    model.train().ctc(torch.randn(1, 12)).sum().backward()
    assert model.ctc.weight.grad is not None


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def edit_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DAMAGE = {
    "no folder": (shutil.rmtree, "is no model folder"),
    "no config": (lambda f: (f / "config.toml").unlink(), "config.toml missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors missing"),
    "no tokenizer": (lambda f: (f / "tokenizer.model").unlink(), "tokenizer.model missing"),
    "nothing": (lambda f: [path.unlink() for path in f.iterdir()], "config.toml and model.safetensors and tokenizer"),
    "newer": (lambda f: edit(f / "config.toml", "version = 1", "version = 2"), "version 2 is newer than 1"),
    "no version": (lambda f: edit(f / "config.toml", "format_version = 1", ""), "format_version is None"),
    "odd version": (lambda f: edit(f / "config.toml", "version = 1", "version = true"), "format_version is True"),
    "unknown setting": (lambda f: edit(f / "config.toml", "width", "widht"), "unknown setting 'widht'"),
    "bad setting": (lambda f: edit(f / "config.toml", "num_layers = 2", "num_layers = 0"), "num_layers is 0"),
    "not TOML": (lambda f: edit(f / "config.toml", "[", "{"), "is not TOML"),
    "empty config": (lambda f: cut(f / "config.toml", 0), "format_version is None"),
    "other width": (lambda f: edit(f / "config.toml", "hidden = 10", "hidden = 11"), "has shape"),
    "more layers": (lambda f: edit(f / "config.toml", "num_layers = 2", "num_layers = 3"), "is missing"),
    "fewer layers": (lambda f: edit(f / "config.toml", "num_layers = 2", "num_layers = 1"), "is unknown"),
    "other kind": (lambda f: edit(f / "config.toml", "highway_bilstm", "star_transformer"), "is missing"),
    "other vocabulary": (lambda f: edit(f / "config.toml", "vocab_size = 40", "vocab_size = 41"), "40 units"),
    "other tokenizer": (
        lambda f: (f / "tokenizer.model").write_bytes(Tokenizer.train(TEXT, 45).serialized),
        "has 45 units and config.toml says 40",
    ),
    "wrong shape": (
        lambda f: edit_weights(f, lambda w: w.update({"ctc.bias": torch.zeros(3)})),
        r"ctc.bias has shape (3,); config.toml wants (40,)",
    ),
    "missing weight": (lambda f: edit_weights(f, lambda w: w.pop("ctc.bias")), "ctc.bias is missing"),
    "unknown weight": (lambda f: edit_weights(f, lambda w: w.update(x=torch.zeros(1))), "weight x is unknown"),
    "truncated weights": (lambda f: cut(f / "model.safetensors", 9000), "is no whole safetensors file"),
    "truncated header": (lambda f: cut(f / "model.safetensors", 100), "is no whole safetensors file"),
    "empty weights": (lambda f: cut(f / "model.safetensors", 0), "is no whole safetensors file"),
    "pickled weights": (lambda f: torch.save({"a": 1}, f / "model.safetensors"), "is no whole safetensors file"),
    "spoiled tokenizer": (lambda f: (f / "tokenizer.model").write_text("x"), "is not a sentencepiece model"),
    "NaN": (lambda f: edit_weights(f, lambda w: w["ctc.bias"].fill_(torch.nan)), "ctc.bias"),
    "whole numbers": (lambda f: edit_weights(f, lambda w: w.update({"ctc.bias": torch.zeros(40).int()})), "ctc.bias"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_folder_that_is_not_whole_is_told_in_one_line(folder, name):
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder(folder):
    with pytest.raises(ModelError, match="is no model folder"):
        load_model(folder / "config.toml")


def test_a_model_without_its_card_works(folder):
    (folder / "README.md").unlink()
    load_model(folder)


def test_every_file_is_plain(folder):
    size = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    header = json.loads((folder / "model.safetensors").read_bytes()[8 : 8 + size])
    assert set(header) - {"__metadata__"} == set(random_model().state_dict())
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["README.md", "config.toml", "model.safetensors", "tokenizer.model"]
    )
