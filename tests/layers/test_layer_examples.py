"""The examples in the docstrings of layers, encoders and attention are tests."""

import doctest
import importlib

import pytest

MODULES = [
    "mocha_stream.attention",
    "mocha_stream.decoder",
    "mocha_stream.layers.bilstm",
    "mocha_stream.layers.char_embedding",
    "mocha_stream.layers.highway",
    "mocha_stream.layers.masking",
    "mocha_stream.layers.mocha_decoder",
    "mocha_stream.hisan",
    "mocha_stream.encoders.frontend",
    "mocha_stream.encoders.highway_bilstm",
    "mocha_stream.encoders.star_transformer",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.FAIL_FAST)
    assert result.attempted > 0
    assert result.failed == 0
