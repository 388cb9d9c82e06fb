"""Settings: read, written, set on the command line, and refused in one line that says where and what."""

import datetime
import tomllib
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mocha_stream.config import (
    AttentionConfig,
    DecoderConfig,
    EncoderConfig,
    FeatureConfig,
    ModelConfig,
    from_dict,
    read_toml,
    set_values,
    to_toml,
)
from mocha_stream.errors import ConfigError


@settings(deadline=None)
@given(
    rate=st.sampled_from([8000, 16_000, 48_000]),
    hop=st.sampled_from([0.1, 1e-5, 10.0, 12.5]),
    chunks=st.lists(st.integers(1, 100), min_size=1, max_size=4),
    dropout=st.floats(0, 0.999),
    init_r=st.floats(-1e30, 1e30),
)
def test_what_is_written_is_read_back(rate, hop, chunks, dropout, init_r):
    config = ModelConfig(
        FeatureConfig(rate, hop_ms=hop),
        EncoderConfig(chunks=tuple(chunks), dropout=dropout),
        AttentionConfig(init_r=init_r, on_miss="last"),
        DecoderConfig(width=7),
        vocab_size=99,
    )
    assert from_dict(ModelConfig, tomllib.loads(to_toml(config)), "x") == config


@settings(deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_text_is_read_back(text):
    values = {"name": text, "table": {"name": text, "list": [text]}}
    assert tomllib.loads(to_toml(values)) == values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_siez": 3}, "model.toml: unknown setting 'vocab_siez'; did you mean 'vocab_size'?"),
        ({"zzz": 3}, "model.toml: unknown setting 'zzz'; known: features, encoder, attention, decoder, vocab_size"),
        ({"encoder": {"widht": 3}}, "model.toml: encoder: unknown setting 'widht'; did you mean 'width'?"),
        ({"encoder": 3}, "model.toml: encoder is 3; expected a table of settings"),
        ({"vocab_size": "3"}, "model.toml: vocab_size is '3'; expected a whole number"),
        ({"vocab_size": 3.0}, "model.toml: vocab_size is 3.0; expected a whole number"),
        ({"vocab_size": True}, "model.toml: vocab_size is True; expected a whole number"),
        ({"vocab_size": 1}, "vocab_size is 1; expected 2 or more"),
        ({"encoder": {"dropout": True}}, "model.toml: encoder: dropout is True; expected a number"),
        ({"encoder": {"dropout": float("nan")}}, "encoder.dropout is nan"),
        ({"encoder": {"chunks": 4}}, "model.toml: encoder: chunks is 4; expected a list"),
        ({"encoder": {"chunks": []}}, "encoder.chunks is []"),
        ({"encoder": {"chunks": [4, "8"]}}, "model.toml: encoder: chunks is '8'; expected a whole number"),
        ({"encoder": {"kind": "lstm"}}, "encoder.kind is 'lstm'; expected one of highway_bilstm, star_transformer"),
        ({"attention": {"window": 0}}, "attention.window is 0"),
        ({"attention": {"on_miss": "first"}}, "attention.on_miss is 'first'; expected stop or last"),
        ({"features": {"hop_ms": 30}}, "features.hop_ms is 30.0 with a window of 25.0 ms"),
        ({"features": {"sample_rate": 4000}}, "features.sample_rate is 4000 Hz"),
    ],
)
def test_mistakes_are_told_in_one_line(values, message):
    with pytest.raises(ConfigError) as caught:
        from_dict(ModelConfig, values, "model.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_whole_number_will_do_for_a_number():
    assert from_dict(ModelConfig, {"encoder": {"dropout": 0}}, "x").encoder.dropout == 0.0


# ---------------------------------------------------------------- files and assignments


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = \n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"a = 1\na = 2", "is not TOML"),
        (None, "No such file"),
    ],
)
def test_files_that_are_no_settings(tmp_path, content, message):
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_toml(tmp_path)


def test_assignments():
    values = {"a": {"b": 1}, "c": "x"}
    changed = set_values(
        values, ["a.b=2", "a.c=[1, 2]", "d.e.f=0.5", "c=hello world", "g=true", "h='3'", "i=", "j=a=b"]
    )
    assert changed == {
        "a": {"b": 2, "c": [1, 2]},
        "c": "hello world",
        "d": {"e": {"f": 0.5}},
        "g": True,
        "h": "3",
        "i": "",
        "j": "a=b",
    }
    assert values == {"a": {"b": 1}, "c": "x"}


@pytest.mark.parametrize("assignment", ["a", "=3", "", "c.d=3", "a.b.c=3"])
def test_assignments_that_are_none(assignment):
    with pytest.raises(ConfigError, match="--set") as caught:
        set_values({"a": {"b": 1}, "c": "x"}, [assignment])
    assert "\n" not in str(caught.value)


def test_values_of_every_kind_of_toml_survive_assignments():
    values = {"day": datetime.date(2026, 1, 2), "at": datetime.time(1, 2), "x": float("inf")}
    assert set_values(values, ["y=1"]) == {**values, "y": 1}


def test_settings_are_plain_values():
    assert asdict(ModelConfig())["encoder"]["chunks"] == (4, 8, 16)
