"""Recipes: those of the project are whole, one may rest on another, and mistakes are told in one line."""

import importlib
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from mocha_stream.config import from_dict, to_toml
from mocha_stream.errors import ConfigError, MochaError
from mocha_stream.training.recipe import Recipe, read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))
SMALL = {"run": "run", "data": {"train": ["a"], "dev": "b", "cache": "c"}}

BASE = """
run = "run"
[data]
train = ["set"]
dev = "dev"
cache = "cache"
[model.encoder]
width = 32
dropout = 0.3
[loss]
text = 0.3
"""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_recipes_are_whole_and_are_read_back(path):
    recipe = read_recipe(path, [])
    assert from_dict(Recipe, tomllib.loads(to_toml(recipe)), "x") == recipe


@pytest.fixture
def ablation(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes" / "librispeech"))
    return importlib.import_module("ablation")


def test_every_row_of_the_ablation_is_a_recipe_of_its_own(ablation):
    rows = [ablation.Row(name, *row) for name, table in ablation.TABLES.items() for row in ablation._split(table)]
    recipes = [read_recipe(ablation.RECIPES / f"{row.recipe}.toml", row.changes) for row in rows]
    assert len(rows) > 20
    assert len({row.folder for row in rows}) == len({str(recipe) for recipe in recipes}) == len(rows)


def test_a_row_that_is_done_is_not_done_again_nor_taken_for_another(ablation, tmp_path):
    row, dev = ablation.Row("ablation", "no noise", ["loss.noise=0"]), tmp_path / "dev.jsonl"
    result = tmp_path / row.folder / "result.json"
    result.parent.mkdir()
    result.write_text('{"settings": ["training.epochs=1", "loss.noise=0"], "whole": 50.0}')
    assert ablation.run(row, tmp_path, dev, ["training.epochs=1"])["whole"] == 50
    with pytest.raises(MochaError, match=r"result\.json: is of .*'training.epochs=1'.*, not \['loss.noise=0'\]"):
        ablation.run(row, tmp_path, dev, [])


def test_a_row_whose_command_fails_names_its_log(ablation, tmp_path):
    row = ablation.Row("ablation", "wrong", ["loss.noise=-1"])
    with pytest.raises(MochaError, match=r"train .*ended with code 2; see .*train\.log"):
        ablation.run(row, tmp_path, tmp_path / "dev.jsonl", [])
    assert "loss.noise is -1" in (tmp_path / row.folder / "train.log").read_text()


def test_a_recipe_has_the_settings_of_its_base_but_for_those_it_names(tmp_path):
    below = tmp_path / "below"
    below.mkdir()
    (below / "base.toml").write_text(BASE)
    (tmp_path / "middle.toml").write_text('base = "below/base.toml"\nrun = "other"\n[model.encoder]\nwidth = 64\n')
    (tmp_path / "top.toml").write_text('base = "middle.toml"\n[data]\ntrain = ["more"]\n')
    recipe = read_recipe(tmp_path / "top.toml", ["loss.text=0"])
    assert (recipe.run, recipe.data.train, recipe.data.dev) == ("other", ("more",), "dev")
    assert (recipe.model.encoder.width, recipe.model.encoder.dropout, recipe.loss.text) == (64, 0.3, 0)


@pytest.mark.parametrize(
    "text, message",
    [
        ('base = "base.toml"\n[data]\nspeeds = 3', "top.toml (based on base.toml): data: speeds is 3; expected a list"),
        ("base = 3", "base is 3; expected the name of another recipe"),
        ('base = "none.toml"', "top.toml: base is 'none.toml'; there is no file"),
        ('base = "top.toml"', "which is based on this file itself"),
        ('base = "round.toml"', "which is based on this file itself"),
        ('base = "base.toml"\n[model.encoder]\nwidht = 3', "unknown setting 'widht'; did you mean 'width'?"),
        ('base = "base.toml"\nmodel = 3', "model is 3; expected a table of settings"),
    ],
)
def test_mistakes_in_the_chain_of_bases(tmp_path, text, message):
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "round.toml").write_text('base = "top.toml"')
    (tmp_path / "top.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_recipe(tmp_path / "top.toml", [])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.epoch=3"], "did you mean 'epochs'?"),
        (["trainin.epochs=3"], "did you mean 'training'?"),
        (["model.encoder.widht=3"], "model: encoder: unknown setting 'widht'"),
        (["training.epochs=0"], "training.epochs is 0"),
        (["training.epochs=ten"], "training: epochs is 'ten'; expected a whole number"),
        (["data.train=[]"], "data.train is empty"),
        (["data.train=here"], "data: train is 'here'; expected a list"),
        (["data.speeds=[]"], "data.speeds is empty"),
        (["data.speeds=[0.1]"], "expected 0.5 to 2"),
        (["loss.ctc=1.5"], "loss.ctc is 1.5"),
        (["training.weights=int4"], "training.weights is 'int4'; expected one of float32, float16, int8"),
        (["training.accumulate=0"], "training.accumulate is 0"),
        (["augment.time_mask=-1"], "augment.time_mask is -1"),
        (["augment.start=2"], "augment.start is 2"),
        (["augment.end=-1"], "augment.end is -1"),
        (["data.splice=1.5"], "data.splice is 1.5"),
        (["training.hold=1"], "training.hold is 1"),
        (["loss.discount=1"], "loss.discount is 1"),
        (["loss.delay_limit=-1"], "loss.delay_limit is -1"),
        (["loss.noise_rise=2"], "loss.noise_rise is 2"),
        (["loss.delay_limit=soon"], "delay_limit is 'soon'; expected a whole number"),
        (["data=3"], "data"),
        (["run=3"], "run is 3; expected text in quotes"),
    ],
)
def test_mistakes_in_recipes_are_told_in_one_line(tmp_path, changes, message):
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(SMALL))
    assert read_recipe(path, []).training.epochs == 60
    with pytest.raises(ConfigError) as caught:
        read_recipe(path, changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["run", "data", "train", "dev", "cache"])
def test_settings_that_a_recipe_has_to_have(tmp_path, missing):
    values = {
        key: {name: item for name, item in value.items() if name != missing} if isinstance(value, dict) else value
        for key, value in SMALL.items()
        if key != missing
    }
    (tmp_path / "recipe.toml").write_text(to_toml(values))
    with pytest.raises(ConfigError, match=f"setting '{missing}' is missing"):
        read_recipe(tmp_path / "recipe.toml", [])
