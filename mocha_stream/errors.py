"""What a user of this package may do wrong, one class a kind of mistake.

Each message is one line: what was found, what was expected, what to do. The commands print it and end with code 2.
"""

from pathlib import Path


class MochaError(Exception):
    """Any mistake that the caller can mend; `except MochaError` catches them all."""


class AudioError(MochaError):
    """Sound that cannot be read or used."""


class ConfigError(MochaError):
    """A setting that is unknown, of the wrong kind or out of range."""


class ModelError(MochaError):
    """A model folder that is incomplete, inconsistent or too new."""


class DataError(MochaError):
    """A corpus, manifest or recipe that cannot be used as it is."""


class DeviceError(MochaError):
    """An input device that is missing, busy or refused."""


class MissingExtraError(MochaError):
    """An optional package that the request needs and that is not installed."""


def about(name: str | Path, error: AudioError, path: str | Path | None = None) -> AudioError:
    """The error with the recording's name in front, in place of the path it was read from."""
    reason = str(error).removeprefix(f"{path or name}: ")
    return AudioError(f"{name}: {reason}")
