"""Options of the test suite."""

from pathlib import Path

import pytest
import torch

VECTORS = Path(__file__).resolve().parents[2] / "shared" / "vectors"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", metavar="DIR", help=f"golden cases to test, DIR/<layer>/<case> (default {VECTORS})")


def pytest_configure(config: pytest.Config) -> None:
    """Tests are small: one thread is fastest, and leaves the machine to others."""
    torch.set_num_threads(1)


def golden_cases(config: pytest.Config) -> list[Path]:
    """The cases of `--vectors`, each a path without its ending. The default folder may be absent, a given one not."""
    given = config.getoption("--vectors")
    cases = [path.with_suffix("") for path in sorted(Path(given or VECTORS).glob("*/*.safetensors"))]
    if given and not cases:
        raise pytest.UsageError(f"--vectors {given}: no DIR/<layer>/<case>.safetensors found there")
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_case" in metafunc.fixturenames:
        cases = golden_cases(metafunc.config)
        metafunc.parametrize("golden_case", cases, ids=[f"{case.parent.name}/{case.name}" for case in cases])
