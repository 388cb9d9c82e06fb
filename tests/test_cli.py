"""The command, from its arguments to what it prints, writes and ends with."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fake_recognizer
import numpy as np
import pytest
import soundfile
from bad_audio import BAD, RATE, tone, unreadable

import mocha_stream
from mocha_stream.cli import EventPrinter, main
from mocha_stream.training.run_log import RunLog
from mocha_stream.transcript import Final, Overflow, Partial, Word
from mocha_stream.writers import FORMATS

COMMANDS = ("transcribe", "live", "devices", "stream", "evaluate", "train", "info")
REPOSITORY = Path(__file__).resolve().parents[1]
SPEECH = REPOSITORY.parent / "shared" / "data" / "LibriSpeech" / "test-clean"
HAS_MODEL = any(Path(mocha_stream.__file__).parent.glob("pretrained/*/config.toml"))
needs_model = pytest.mark.skipif(not HAS_MODEL, reason="no bundled model in mocha_stream/pretrained")


@pytest.fixture(params=["fake", pytest.param("bundled", marks=needs_model)])
def model(request, monkeypatch):
    """The command with a stand-in for the model, and again with the bundled one."""
    if request.param == "fake":
        monkeypatch.setitem(sys.modules, "mocha_stream.recognizer", fake_recognizer)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(sys.modules, "mocha_stream.recognizer", fake_recognizer)


@pytest.fixture
def good(tmp_path) -> Path:
    """Ten seconds of a tone: ten words to the stand-in."""
    folder = tmp_path / "good"
    folder.mkdir()
    soundfile.write(folder / "ten.wav", tone(), RATE)
    return folder / "ten.wav"


def the_line(text: str) -> str:
    """What the command said on stderr, which has to be one line under its name."""
    (line,) = text.splitlines()
    assert line.startswith("mocha-stream: ")
    return line


def in_a_process(program: str, *arguments: str, **options) -> subprocess.Popen:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], env={**os.environ, "PYTHONPATH": path}, **options
    )


# Start-up


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        *([[command, "--help"], 0] for command in COMMANDS),
        ([], 2),
        (["dictate"], 2),
        (["transcribe"], 2),
        (["transcribe", "missing.wav"], 2),
        (["transcribe", "a.wav", "--latency-ms", "0"], 2),
        (["transcribe", "a.wav", "--latency-ms", "soon"], 2),
        (["transcribe", "a.wav", "--format", "doc"], 2),
        (["stream", "missing.wav"], 2),
        (["stream", "-", "--sample-rate", "1000"], 2),
        (["stream", "a.wav", "--sample-rate", "16000"], 2),
        (["evaluate", "missing"], 2),
        (["evaluate", ".", "--report", "page.pdf"], 2),
        (["evaluate", ".", "--training-log", "run"], 2),
        (["train", "missing.toml"], 2),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_help_and_mistakes_do_not_load_torch(arguments, code):
    program = """if True:
        import sys
        from mocha_stream.cli import main
        try:
            code = main(sys.argv[1:])
        except SystemExit as end:
            code = end.code
        print("\\n", *sorted({"torch", "torchaudio"} & set(sys.modules)), sep="")
        sys.exit(code)
    """
    process = in_a_process(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate()
    assert process.returncode == code
    assert out.splitlines()[-1] == "", "torch was loaded"
    if code:
        the_line(err)
    else:
        assert out.strip()
        assert not err


def test_help_is_quick():
    """Loading torch alone takes more than a second."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "mocha_stream", "--help"], check=True, cwd=REPOSITORY, stdout=subprocess.DEVNULL
        )
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5


# Bad input


@pytest.mark.parametrize("command", ["transcribe", "stream"])
@pytest.mark.parametrize("name", BAD)
def test_bad_input_alone(model, tmp_path, capsys, command, name):
    make, message = BAD[name]
    path = make(tmp_path)
    if command == "stream" and path.is_dir():
        message = "Is a directory"
    assert main([command, str(path)]) == 2
    out, err = capsys.readouterr()
    assert message in the_line(err)
    assert str(path) in err
    assert not out or (command == "stream" and name in ("truncated FLAC", "NaN samples"))


@pytest.mark.parametrize("name", BAD)
def test_bad_input_among_good(model, tmp_path, capsys, good, name):
    make, message = BAD[name]
    before, after = good, good.with_name("more.wav")
    after.write_bytes(good.read_bytes())
    assert main(["transcribe", str(before), str(make(tmp_path)), str(after)]) == 1
    out, err = capsys.readouterr()
    failure, summary = err.splitlines()
    assert message in the_line(failure)
    assert the_line(summary).startswith("mocha-stream: 2 of 3 recordings transcribed, 1 failed: ")
    assert [line.partition("\t")[0] for line in out.splitlines()] == [str(before), str(after)]


def test_unreadable_file(fake, capsys, good):
    assert main(["transcribe", str(good)]) == 0
    capsys.readouterr()
    with unreadable(good):
        assert main(["transcribe", str(good)]) == 2
    assert "Permission denied" in the_line(capsys.readouterr().err)


def test_every_file_failed(fake, tmp_path, capsys):
    assert main(["transcribe", str(tmp_path / "a.wav"), str(tmp_path / "b.wav")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_bad_model_folder(fake, tmp_path, capsys, good):
    for command in ("transcribe", "stream"):
        assert main([command, str(good), "--model", str(tmp_path)]) == 2
        assert "is no model folder" in the_line(capsys.readouterr().err)


def test_no_such_recipe_key(tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('run = "run"\n[data]\ntrain = ["."]\ndev = "."\ncache = "."\n')
    pytest.importorskip("mocha_stream.training.trainer")
    assert main(["train", str(recipe), "--set", "model.encoder.widht=3"]) == 2
    assert "unknown setting 'widht'; did you mean 'width'?" in the_line(capsys.readouterr().err)
    assert main(["train", str(recipe), "--set", "training.epochs"]) == 2
    assert "expected KEY=VALUE" in the_line(capsys.readouterr().err)
    recipe.write_text("[data\n")
    assert main(["train", str(recipe)]) == 2
    assert "is not TOML" in the_line(capsys.readouterr().err)


# transcribe


def test_transcribe_prints_path_and_text(fake, capsys, good):
    assert main(["transcribe", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}\t{' '.join(f'WORD{i}' for i in range(10))}\n"


@pytest.mark.parametrize("name", FORMATS)
def test_transcribe_to_files(model, tmp_path, capsys, good, name):
    (good.parent / "deep" / "er").mkdir(parents=True)
    soundfile.write(good.parent / "deep" / "er" / "two.one.flac", tone(2 * RATE), RATE)
    output = tmp_path / "new" / "texts"
    assert main(["transcribe", str(good.parent), "--format", name, "--output-dir", str(output)]) == 0
    written = sorted(path for path in output.rglob("*") if path.is_file())
    assert written == [output / "deep" / "er" / f"two.one.{name}", output / f"ten.{name}"]
    out, err = capsys.readouterr()
    assert not out
    assert the_line(err).startswith("mocha-stream: 2 of 2 recordings transcribed: 0.2 minutes of audio in ")

    if name not in ("srt", "vtt"):
        assert main(["transcribe", str(good), "--format", name]) == 0
        expected = written[1].read_text()
        assert capsys.readouterr().out == (f"{good}\t{expected}" if name == "txt" else expected)


def test_subtitles_of_one_recording_can_be_printed_and_of_two_cannot(fake, capsys, good):
    assert main(["transcribe", str(good), "--format", "srt"]) == 0
    assert capsys.readouterr().out.startswith("1\n00:00:00,250 --> ")
    assert main(["transcribe", str(good), str(good), "--format", "srt"]) == 2
    assert "name an --output-dir" in the_line(capsys.readouterr().err)


def test_two_recordings_are_not_written_to_one_file(fake, tmp_path, capsys, good):
    good.with_suffix(".flac").touch()
    assert main(["transcribe", str(good.parent), "--output-dir", str(tmp_path / "texts")]) == 2
    assert "would both be written to" in the_line(capsys.readouterr().err)
    assert not (tmp_path / "texts").exists()


def test_output_that_cannot_be_written(fake, tmp_path, capsys, good):
    (tmp_path / "taken").touch()
    assert main(["transcribe", str(good), "--output-dir", str(tmp_path / "taken")]) == 2
    assert "cannot be written" in the_line(capsys.readouterr().err)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing_behind(fake, tmp_path, capsys, good, monkeypatch, error):
    target = tmp_path / "ten.txt"
    target.write_text("what was there before")

    def fail(self, *arguments, **options):
        self.touch()
        raise error

    monkeypatch.setattr(Path, "write_bytes", fail)
    code = main(["transcribe", str(good), "--output-dir", str(tmp_path)])
    assert code == (2 if isinstance(error, OSError) else 130)
    assert target.read_text() == "what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good", "ten.txt"]


def test_interrupt(fake, good, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fake_recognizer.Recognizer, "transcribe_many", interrupt)
    assert main(["transcribe", str(good)]) == 130


# stream


@pytest.mark.parametrize("block_ms", ["1", "100", "3700", "60000"])
def test_stream_prints_an_utterance_a_line(fake, capsys, good, block_ms):
    assert main(["stream", str(good), "--block-ms", block_ms]) == 0
    assert capsys.readouterr().out == "WORD0 WORD1 WORD2\nWORD3 WORD4 WORD5\nWORD6 WORD7 WORD8\nWORD9\n"


def events(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def finals(out: str) -> str:
    return " ".join(event["text"] for event in events(out) if event["event"] == "final")


@pytest.mark.parametrize("block_ms", ["7", "1000"])
def test_stream_to_json_lines(model, capsys, block_ms):
    path = str(sorted(SPEECH.rglob("*.flac"))[0])
    assert main(["stream", path, "--jsonl", "--block-ms", block_ms]) == 0
    found, finals_by_block = events(capsys.readouterr().out), []
    for event in found:
        assert event["event"] in ("partial", "final")
        assert event["text"] == " ".join(word["word"] for word in event["words"])
        assert event["at_s"] >= 0
        if event["event"] == "final":
            assert event["start_s"] <= event["end_s"] <= event["at_s"]
            finals_by_block.append(event["text"])
    assert main(["stream", path, "--block-ms", "100"]) == 0
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in finals_by_block if text)


def test_a_beam_and_its_language_model(fake, tmp_path, capsys, good):
    assert main(["stream", str(good), "--beam", "4", "--language-model", "lm.binary", "--lm-weight", "0.7"]) == 0
    assert main(["transcribe", str(good), "--beam", "4", "--language-model", "lm.binary", "--lm-weight", "0.7"]) == 0
    beam = fake_recognizer.Recognizer.beam
    assert (beam.size, beam.language_model, beam.language) == (4, "lm.binary", 0.7)
    assert main(["stream", str(good)]) == 0
    assert fake_recognizer.Recognizer.beam is None
    capsys.readouterr()
    assert main(["stream", str(good), "--language-model", "lm.binary"]) == 2
    assert "name its size too, as in --beam 8" in the_line(capsys.readouterr().err)
    assert main(["stream", str(good), "--beam", "2", "--lm-weight", "-1"]) == 2
    assert "beam.language is -1.0" in the_line(capsys.readouterr().err)


def test_stream_from_standard_input(model, capsys, good, monkeypatch):
    samples = soundfile.read(good, dtype="int16")[0]
    assert main(["stream", str(good), "--jsonl"]) == 0
    expected = finals(capsys.readouterr().out)
    for num_bytes in (2 * len(samples), 2 * len(samples) - 1):  # a pipe that was cut within a sample
        raw = io.BytesIO(samples.astype("<i2").tobytes()[:num_bytes])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=raw))
        assert main(["stream", "-", "--jsonl"]) == 0
        found = finals(capsys.readouterr().out)
        assert found == expected or (num_bytes % 2 and expected.startswith(found))


def test_standard_input_has_the_rate_that_is_given(fake, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(bytes(2 * 2 * 8000))))
    assert main(["stream", "-", "--sample-rate", "8000"]) == 0
    assert capsys.readouterr().out == "WORD0 WORD1\n"


@pytest.mark.parametrize("data", [b"", b"x"])
def test_empty_standard_input(fake, capsys, monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert main(["stream", "-"]) == 2
    assert the_line(capsys.readouterr().err).startswith("mocha-stream: -: holds no samples")


def test_what_was_whole_of_a_truncated_file_is_heard(fake, tmp_path, capsys):
    path = BAD["truncated FLAC"][0](tmp_path)
    assert main(["stream", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("WORD0 WORD1 WORD2\nWORD3")
    assert out.endswith("\n")
    assert "truncated" in the_line(err)


def test_realtime(fake, tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(RATE // 2), RATE)
    seconds = []
    for pace in ([], ["--realtime"]):
        start = time.monotonic()
        assert main(["stream", str(tmp_path / "a.wav"), *pace]) == 0
        seconds.append(time.monotonic() - start)
    assert seconds[0] < 0.4
    assert 0.5 <= seconds[1] < 1.5


@pytest.mark.parametrize("command", ["stream", "transcribe"])
def test_a_reader_that_goes_away_ends_it_quietly(good, command):
    program = """if True:
        import sys
        import fake_recognizer
        sys.modules["mocha_stream.recognizer"] = fake_recognizer
        from mocha_stream.cli import main
        sys.stdin.read()  # until the reader is gone
        sys.exit(main(sys.argv[1:]))
    """
    pipe = subprocess.PIPE
    process = in_a_process(program, command, str(good), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0


def spoken(*texts: str) -> tuple[Word, ...]:
    return tuple(Word(text, 0.0, 1.0, 1.0) for text in texts)


def test_printed_text_only_grows(capsys):
    printer = EventPrinter(jsonl=False)
    printer.show([Partial("a b", spoken("a", "b"), 1.0, 1)])
    assert capsys.readouterr().out == "a"
    printer.show([Partial("a c d", spoken("a", "c", "d"), 2.0, 2), Partial("a c d", spoken("a", "c", "d"), 2.5, 2)])
    assert capsys.readouterr().out == " c"
    printer.show([Overflow(0.25, 3.0)])
    assert "0.25 s of sound were lost at 3.00 s" in the_line(capsys.readouterr().err)
    printer.show([Final("a c e", spoken("a", "c", "e"), 0.0, 1.0, 3.0), Final("", (), 3.0, 4.0, 4.0)])
    printer.show([Partial("f", spoken("f"), 5.0, 1), Final("f", spoken("f"), 5.0, 6.0, 6.0)])
    assert capsys.readouterr().out == " e\nf\n"


# What the other commands hand on


def stand_in(monkeypatch, module: str, **functions: Callable) -> None:
    monkeypatch.setitem(sys.modules, f"mocha_stream.{module}", SimpleNamespace(**functions))


def test_evaluate(fake, tmp_path, capsys, monkeypatch):
    asked = []

    def evaluate(recognizer, data, streaming, latency_ms, limit):
        asked.append((data, streaming, latency_ms, limit))
        return SimpleNamespace(to_text=lambda: "WER 12.3%", to_json=lambda: '{"wer": 0.123}', failures=failures)

    failures: list[str] = []
    stand_in(monkeypatch, "evaluate", evaluate=evaluate)
    assert main(["evaluate", str(tmp_path)]) == 0
    options = ["--streaming", "--latency-ms", "640", "--limit", "5", "--json", str(tmp_path / "new" / "wer.json")]
    assert main(["evaluate", str(tmp_path), *options]) == 0
    assert asked == [(tmp_path, False, None, None), (tmp_path, True, 640, 5)]
    assert capsys.readouterr().out == "WER 12.3%\n" * 2
    assert json.loads((tmp_path / "new" / "wer.json").read_text()) == {"wer": 0.123}
    failures.append("a.flac: is truncated")
    assert main(["evaluate", str(tmp_path)]) == 1


def test_evaluate_writes_a_page(fake, tmp_path, capsys, monkeypatch):
    pages = []
    report = SimpleNamespace(to_text=lambda: "WER 12.3%", failures=[])
    stand_in(monkeypatch, "evaluate", evaluate=lambda *_: report)
    stand_in(monkeypatch, "report_page", check_page=lambda path: None, write_page=lambda *given: pages.append(given))
    (tmp_path / "log.jsonl").write_text('{"step": 0, "loss": 5.0}\n')
    page = tmp_path / "page.md"
    assert main(["evaluate", str(tmp_path), "--report", str(page)]) == 0
    assert main(["evaluate", str(tmp_path), "--report", str(page), "--training-log", str(tmp_path)]) == 0
    assert [(path, found, log) for path, found, _, _, log in pages] == [
        (page, report, None),
        (page, report, RunLog([{"step": 0.0, "loss": 5.0}], [])),
    ]
    capsys.readouterr()
    for options, message in (
        (["--training-log", str(tmp_path)], "name its --report"),
        (["--report", str(page), "--training-log", str(tmp_path / "none")], "expected the folder of a training run"),
    ):
        assert main(["evaluate", str(tmp_path), *options]) == 2
        out, err = capsys.readouterr()
        assert message in the_line(err)
        assert not out, "it is told before the evaluation"


def test_evaluate_without_matplotlib(fake, tmp_path, capsys, monkeypatch):
    stand_in(monkeypatch, "evaluate", evaluate=lambda *_: pytest.fail("the work began"))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["evaluate", str(tmp_path), "--report", str(tmp_path / "page.md")]) == 2
    assert "pip install 'mocha-stream[train]'" in the_line(capsys.readouterr().err)
    assert main(["evaluate", str(tmp_path), "--report", str(tmp_path / "page.pdf")]) == 2
    assert ".md or .html" in the_line(capsys.readouterr().err)


def test_train(tmp_path, monkeypatch):
    asked = []
    stand_in(monkeypatch, "training.trainer", train=lambda *arguments: asked.append(arguments))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('run = "run"\n[data]\ntrain = ["a"]\ndev = "b"\ncache = "c"\n')
    assert main(["train", str(recipe)]) == 0
    settings = ["loss.ctc=1", "training.seed=2", "name=x"]
    assert main(["train", str(recipe), "--resume", "--set", *settings[:2], "--set", settings[2]]) == 0
    assert asked == [(recipe, False, []), (recipe, True, settings)]


def test_live_and_devices(fake, tmp_path, capsys, monkeypatch):
    def run_live(load, latency_ms, device, save, show):
        assert (latency_ms, device, save) == (320, "USB", tmp_path / "a.wav")
        session = load().session()
        show(session.feed(np.zeros(RATE, np.int16)))
        show(session.finish())

    stand_in(monkeypatch, "live", run_live=run_live)
    stand_in(monkeypatch, "microphone", list_devices=lambda: "0 USB 48000 Hz")
    assert main(["live", "--latency-ms", "320", "--device", "USB", "--save", str(tmp_path / "a.wav")]) == 0
    assert capsys.readouterr().out == "WORD0\n"
    assert main(["devices"]) == 0
    assert capsys.readouterr().out == "0 USB 48000 Hz\n"


# A model folder that is not whole


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A tiny untrained model."""
    pytest.importorskip("mocha_stream.recognizer")
    import torch

    from mocha_stream.config import DecoderConfig, EncoderConfig, ModelConfig
    from mocha_stream.model import MochaModel
    from mocha_stream.model_folder import save_model
    from mocha_stream.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(["THE CAT SAT ON THE MAT", "A DOG SAT THERE TOO"], 20)
    encoder = EncoderConfig(width=8, hidden=8, num_layers=1)
    config = ModelConfig(encoder=encoder, decoder=DecoderConfig(width=8, embedding=8), vocab_size=len(tokenizer))
    folder = tmp_path_factory.mktemp("model")
    save_model(MochaModel(config), tokenizer, folder, "an untrained model", torch.float32)
    return folder


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.toml").unlink(), "config.toml missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors missing"),
        (lambda folder: (folder / "tokenizer.model").unlink(), "tokenizer.model missing"),
        (lambda folder: (folder / "tokenizer.model").write_text("no"), "is not a sentencepiece model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "is no whole safetensors file"),
        (replace("config.toml", "format_version = 1", "format_version = 99"), "is newer than"),
        (replace("config.toml", "format_version = 1", ""), "format_version is None"),
        (replace("config.toml", "hidden = 8", "hidden = 16"), "has shape"),
        (replace("config.toml", "hidden", "hiden"), "unknown setting 'hiden'; did you mean 'hidden'?"),
        (replace("config.toml", "vocab_size = 20", "vocab_size = 21"), "20 units and config.toml says 21"),
    ],
)
def test_spoiled_model_folder(model_folder, tmp_path, capsys, good, spoil, message):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    assert main(["transcribe", str(good), "--model", str(folder)]) == 0
    capsys.readouterr()
    spoil(folder)
    for command in (["transcribe", str(good)], ["stream", str(good)], ["info"]):
        assert main([*command, "--model", str(folder)]) == 2
        assert message in the_line(capsys.readouterr().err)


def test_info_of_a_folder(model_folder, capsys):
    assert main(["info", "--model", str(model_folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{model_folder}: 0.0")
    assert "\nlatencies: 320, 640, 1280 ms, or the whole recording\n" in out
    assert out.endswith("\nan untrained model\n")


def test_latency_is_one_of_the_models(model_folder, capsys, good):
    for command in ("transcribe", "stream"):
        assert main([command, str(good), "--model", str(model_folder), "--latency-ms", "7"]) == 2
        assert "trained for 320, 640, 1280 ms" in the_line(capsys.readouterr().err)


def test_no_such_model_folder(model_folder, tmp_path, capsys, good):
    assert main(["transcribe", str(good), "--model", str(tmp_path / "missing")]) == 2
    assert "is no model folder" in the_line(capsys.readouterr().err)


# The bundled model


@needs_model
def test_bundled_recordings(capsys):
    recordings = sorted(Path(mocha_stream.__file__).parent.glob("pretrained/**/*.flac"))
    assert recordings, "expected bundled recordings beside the model"
    assert main(["transcribe", *map(str, recordings)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in lines] == [str(path) for path in recordings]
    assert all(len(line.partition("\t")[2].split()) > 3 for line in lines)


@needs_model
def test_info(capsys):
    assert main(["info"]) == 0
    assert "WER" in capsys.readouterr().out
