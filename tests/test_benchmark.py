"""The benchmark's counting is right; what it measures is the machine's."""

import json
import os
import sys
from itertools import count
from pathlib import Path

import benchmark
import numpy as np
import plot_alignment
import pytest
import soundfile
import tiny
import torch
from benchmarks import attention, batch, long, memory, soak, speech, times, training, worker

from mocha_stream.corpus import Utterance, read_corpus
from mocha_stream.errors import ConfigError, MissingExtraError
from mocha_stream.model_folder import save_model
from mocha_stream.recognizer import BUNDLED, Recognizer
from mocha_stream.scores import ScoredWord, Span
from mocha_stream.search import SCAN_BLOCK
from mocha_stream.table import table
from mocha_stream.transcript import Word

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer(tiny.random_model(), tiny.tokenizer())


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_model(tiny.random_model(), tiny.tokenizer(), folder, "", torch.float32)
    return folder


@pytest.fixture
def corpus(tmp_path):
    entries = []
    for i, (seconds, text) in enumerate(((2.0, "THE LAZY DOG"), (3.3, "MY BOX"), (4.1, "THE QUICK SHIP"))):
        soundfile.write(tmp_path / f"{i}.wav", tiny.noise(seconds, seed=i), tiny.RATE)
        entries.append({"path": f"{i}.wav", "text": text, "speaker": f"s{i % 2}"})
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return tmp_path


def test_table():
    assert table(["", "ab"], [["x", "1"], ["a long line"], ["yy", "100"]]) == "     ab\nx     1\na long line\nyy  100"


def test_many_files_are_counted_in_processor_time_too():
    rows = {"other": "not installed", "mocha-stream, one by one": batch.Cost(0.03, 0.02)}
    with batch.clocks(audio_s=2.0) as cost:
        sum(range(100_000))
    assert 0 < cost[0].wall < 1
    described = batch.describe({**rows, "mocha-stream, batches": batch.Cost(0.01, 0.005)}).splitlines()
    assert described[1].split() == ["other:", "not", "installed"]
    assert described[2].split()[-4:] == ["0.56", "0.03000", "0.02000", "4.0"]
    assert described[3].split()[-4:] == ["1.67", "0.01000", "0.00500", "1.0"]


def test_memory_of_a_child_is_its_own():
    before = memory.resident_mib()
    assert 60 < memory.in_child(growth_mib, 64) < 80
    assert memory.resident_mib() < before + 30


def growth_mib(mib: int) -> float:
    """By an array of `mib`."""
    before = memory.resident_mib()
    np.ones(mib * 2**17).sum()
    return memory.peak_mib() - before


# Beside other recognisers


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Mr. Smith paid 25 pounds,", "MISTER SMITH PAID TWENTY FIVE POUNDS"),
        ("in 1984 it's 1,000,003", "IN ONE THOUSAND NINE HUNDRED AND EIGHTY FOUR IT'S ONE MILLION AND THREE"),
        ("0 7 13 40 100 219", "ZERO SEVEN THIRTEEN FORTY ONE HUNDRED TWO HUNDRED AND NINETEEN"),
        ("A WELL KNOWN DOCTOR", "A WELL KNOWN DOCTOR"),
        ("", ""),
    ],
)
def test_spelling_of_the_references(text, expected):
    assert speech.spell(text) == expected


def test_one_recording_per_speaker_first():
    utterances = [
        Utterance(f"{speaker}{i}", Path(), "", speaker) for speaker in "abc" for i in range(1 + "abc".index(speaker))
    ]
    assert [item.id for item in speech.choose(utterances, 5)] == ["a0", "b0", "c0", "b1", "c1"]
    assert len(speech.choose(utterances, 100)) == 6


def test_a_word_counts_from_when_it_stays():
    updates = [(1.0, ["A"]), (2.0, ["A", "X"]), (3.0, ["A", "B"]), (4.0, ["B", "B"]), (5.0, ["A", "B", "C"])]
    assert speech.commit_times(updates, ["A", "B", "C"]) == [5.0, 3.0, 5.0]
    assert speech.commit_times([], []) == []


def test_judgement_of_an_answer():
    recordings = [
        {
            "text": "the cat sat.",
            "updates": [[1.0, "the"], [2.0, "the hat"], [3.0, "the cat sat"], [3.0, "the cat sat."]],
            **{"duration_s": 3.0, "wall_s": 0.6, "cpu_s": 0.3, "delay_s": 0.25},
        },
        {"text": "", "updates": [], "duration_s": 1.0, "wall_s": 0.2, "cpu_s": 0.1, "delay_s": 0.75},
    ]
    utterances = [Utterance("a", Path(), "THE CAT SAT DOWN", "s"), Utterance("b", Path(), "NO", "s")]
    answer = {"recordings": recordings, "peak_mib": 100.0}
    result = speech.judge(answer, utterances, [[0.5, 1.5, 2.5, 2.75], None])
    assert result.errors.wer == 40.0
    assert (result.real_time_factor, result.cpu_factor) == pytest.approx((0.2, 0.1))
    assert result.rewriting == 25.0
    assert result.delays_s == [0.25, 0.75]
    assert result.commits_s == [0.5, 1.5, 0.5]
    lines = speech.describe({"ours": result, "other": "not installed; pip install it"}, "ours").splitlines()
    assert lines[1].split() == ["ours", "40.00", "0.200", "0.100", "100", "25.0", "0.500", "0.725", "0.50", "1.40"]
    assert lines[2] == "other: not installed; pip install it"
    assert lines[-1].split() == ["ours"] + ["1.000"] * 9


def test_clock_waits_for_the_speaker_and_for_the_block_before(monkeypatch):
    """Four blocks of 0.1 s and the end; the second one takes 0.25 s, so what follows is late by less and less."""
    ticks = iter(np.cumsum([0, 0.01, 0, 0.25, 0, 0.01, 0, 0.01, 0, 0.02]))
    monkeypatch.setattr(worker.time, "perf_counter", lambda: float(next(ticks)))
    spoken = count(1)

    class Engine:
        def start(self):
            pass

        def feed(self, samples):
            assert len(samples) == 1600
            return "A" if next(spoken) < 3 else "A B"

        def finish(self):
            return "A B C"

    result = worker.recognise(Engine(), np.zeros(6400, np.int16), 1600)
    assert result["wall_s"] == pytest.approx(0.3)
    assert [text for _, text in result["updates"]] == ["A", "A B", "A B C"]
    assert [at_s for at_s, _ in result["updates"]] == pytest.approx([0.11, 0.46, 0.49])
    assert result["delay_s"] == pytest.approx(0.09)


def test_our_worker_gives_what_a_session_gives(model_folder, corpus, tmp_path):
    utterances = read_corpus(corpus)
    paths = [speech.convert(item.path, tmp_path / f"converted-{i}.wav") for i, item in enumerate(utterances)]
    engine = speech.Engine("ours", "mocha-stream", {"model": str(model_folder), "latency_ms": 320})
    answer = speech.work(engine, paths, sys.executable, tmp_path)
    recognizer = Recognizer.load(model_folder)
    assert isinstance(answer, dict), answer
    for item, path in zip(answer["recordings"], paths, strict=True):
        assert item["text"] == recognizer.transcribe(path, latency_ms=320).text
        assert item["delay_s"] > 0
    result = speech.judge(answer, utterances, [None] * 3)
    assert result.rewriting == 0.0, "no word once shown is ever changed"
    assert 20 < result.peak_mib < 4000


def test_what_is_not_there_is_told_in_a_line(corpus, tmp_path, monkeypatch):
    (tmp_path / "pocketsphinx.py").write_text("raise ModuleNotFoundError(\"No module named 'pocketsphinx'\")")
    (tmp_path / "moonshine_voice.py").write_text("raise OSError('no such library')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ.get("PYTHONPATH", ""))
    [sphinx, moonshine] = speech.PEERS[:2]
    answer = speech.work(sphinx, [], sys.executable, tmp_path)
    assert answer.startswith("not installed; pip install pocketsphinx==5.1.1")
    assert speech.work(moonshine, [], sys.executable, tmp_path) == "not run: OSError: no such library"
    with pytest.raises(ConfigError, match=r"--ratio-to 'nobody'; expected one of .*'pocketsphinx'"):
        speech.run(corpus, 1, tmp_path / "no-model", sys.executable, "nobody")


# Word times


def test_word_times_are_taken_from_where_words_are_spoken():
    def word(start_s: float, shown_at_s: float | None, spoken: Span | None) -> ScoredWord:
        return ScoredWord("A", start_s, start_s + 0.2, 0.5, spoken is not None, shown_at_s, spoken)

    spoken = [word(1 + off, 2.0 + late, Span(1.0, 1.5)) for off, late in ((0.1, 0.0), (-0.2, 0.1), (0.3, 0.5))]
    assert times._cells([*spoken, word(5.0, 6.0, None)]) == ["3", "0.20", "0.28", "+0.07", "0.60", "0.96"]
    assert times._cells([word(1.1, None, Span(1.0, 1.5))]) == ["1", "0.10", "0.10", "+0.10", "-", "-"]
    assert times._cells([word(1.1, None, None)]) == ["0", "-", "-", "-", "-", "-"]


def test_alignment_without_pocketsphinx(corpus, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    assert benchmark.main(["times", str(corpus)]) == 2
    assert capsys.readouterr().err == "benchmark: alignment needs pocketsphinx; pip install 'mocha-stream[bench]'\n"


# Attention


def test_exponent():
    assert attention.exponent([100, 1000, 10_000], [2.0, 200.0, 20_000.0]) == pytest.approx(2.0)


def test_soft_ways_agree_where_the_closed_form_holds():
    energy = attention.energies(2, 3, 40)
    exact = attention.sequential(energy)
    for way in attention.WAYS.values():
        assert (way(energy) - exact).abs().max() < 1e-6
    assert attention.align("ours", 2, 3, 40, torch.float32)["grad"].shape == (2, 3, 40)


def test_hard_ways_find_the_same_tokens_with_very_different_work():
    size = 400
    ours, everything = attention.listen(size), attention.look_at_everything(size)
    assert (ours["tokens"], ours["check"]) == (everything["tokens"], everything["check"])
    assert size / 20 < ours["tokens"] < size / 3
    assert ours["energies"] <= size + SCAN_BLOCK * ours["tokens"]
    assert everything["energies"] == size * (everything["tokens"] + 1)


# Training


def test_speed_of_training_leaves_the_first_steps_out():
    watch = training._Watch(2)
    for seconds in (9.0, 9.0, 2.0):
        watch.step({"audio_s": 100.0, "seconds": seconds})
    with pytest.raises(training._Enough):
        watch.step({"audio_s": 50.0, "seconds": 1.0})
    assert "2 steps of 75 s of audio in 1.50 s each, 50 s of audio per second" in training.describe(watch.seen[2:], "x")
    assert "nothing measured" in training.describe([], "x")


# A long stream


def test_drift_is_between_the_stream_and_the_recording_alone():
    utterances = [Utterance(name, Path(), "", "") for name in "ab"]
    slots = [soak.Slot(utterances[0], 1.0, 4.0), soak.Slot(utterances[1], 5.0, 9.0)]
    words = [Word("X", 1.5, 2.0, 1.0), Word("Y", 2.0, 3.5, 1.0), Word("X", 5.5, 6.5, 1.0), Word("Z", 7.0, 8.0, 1.0)]
    apart = {"a": (Word("Y", 1.0, 2.5, 1.0),), "b": (Word("X", 0.5, 1.0, 1.0), Word("Q", 1.0, 2.0, 1.0))}
    found = soak.drifts(soak.Soak(1.0, slots=slots, words=words), apart)
    assert found == [(3.5, 0.0), (6.5, 0.5)]


def test_soak(recognizer, corpus):
    utterances = read_corpus(corpus)
    result = soak.listen(recognizer, utterances, 0.01, 320)
    end_s = result.slots[-1].end_s
    assert 36 <= end_s < 36 + 4.1 + 2
    for before, after in zip(result.slots, result.slots[1:], strict=False):
        assert 0.3 <= after.start_s - before.end_s <= 2.0
    assert len(result.block_times) == len(result.cpu_times) == int(end_s / 0.1)
    assert (result.block_times > 0).all()
    assert result.slots[3].utterance is utterances[0], "all recordings again where they do not suffice"
    assert len(result.memory) >= 10
    assert result.num_rewrites == 0
    assert 0 < result.energies <= result.energy_bound
    assert result.words == sorted(result.words, key=lambda word: word.end_s)

    samples = np.concatenate([*soak._stream(utterances, 0.01, [])])
    assert [word.word for word in result.words] == recognizer.transcribe(samples, 320).text.split()
    apart = soak.recognise_apart(recognizer, {item.id: item for item in utterances}, 320)
    text = soak.describe(result, apart, 320)
    assert "rewritten words   0" in text
    assert f"energies          {result.energies} <= bound {result.energy_bound}" in text


@pytest.mark.slow
@pytest.mark.skipif(not (BUNDLED / "config.toml").exists(), reason="no bundled model yet")
@pytest.mark.skipif(not DATA.exists(), reason="no ../shared/data")
def test_soak_of_the_bundled_model():
    recognizer = Recognizer.load()
    result = soak.listen(recognizer, read_corpus(DATA / "LibriSpeech" / "test-clean"), 3 / 60, 640)
    apart = soak.recognise_apart(recognizer, {slot.utterance.id: slot.utterance for slot in result.slots}, 640)
    print(soak.describe(result, apart, 640))
    assert result.growth_mib() < 5
    assert result.slowdown(result.cpu_times) < 1.5, "an hour says more: tools/benchmark.py soak"
    assert result.num_rewrites == 0
    assert result.energies <= result.energy_bound
    found = [drift for _, drift in soak.drifts(result, apart)]
    assert abs(np.median(found)) < 0.1


# Long recordings


def test_recordings_are_joined_by_speaker_until_they_are_long_enough(monkeypatch):
    utterances = [Utterance(str(i), Path(str(i)), f"T{i}", "ab"[i % 2]) for i in range(10)]
    monkeypatch.setattr(long, "read_audio", lambda path: np.full(long.RATE, int(path.name), np.float32))
    joined = [[utterance.id for utterance, _ in parts] for parts in long.join(utterances, 2.0)]
    assert joined == [["0", "2"], ["4", "6"], ["1", "3"], ["5", "7"]]


def test_joined_recordings_are_scored_against_their_parts():
    parts = [(Utterance(name, Path(), f"SAY {name}", "s"), np.zeros(10, np.float32)) for name in "AB"]
    whole, apart = long.score(lambda samples: "SAY A" if len(samples) == 10 else "SAY A SAY", [parts])
    assert (whole.num_words, whole.wer) == (4, 25.0)
    assert (apart.num_words, apart.wer) == (4, 25.0)


def test_long_recordings(recognizer, model_folder, corpus, capsys):
    samples = long.read_audio(read_corpus(corpus)[0].path)
    assert long.InOnePiece(recognizer, None)(samples) == recognizer.transcribe(samples).text != ""
    latency_ms = recognizer.latencies_ms[0]
    arguments = ["long", str(corpus), "--model", str(model_folder), "--minutes", "0.1"]
    assert benchmark.main([*arguments, "--latency-ms", str(latency_ms)]) == 0
    assert "1 joined recordings of 0.1 minutes at least, from 2 parts" in capsys.readouterr().out
    assert benchmark.main(["long", str(corpus), "--latency-ms", str(latency_ms), "--model", str(model_folder)]) == 2
    assert "no speaker has 2 minutes of recordings" in capsys.readouterr().err


# The commands


def test_mistakes_are_told_in_a_line(tmp_path, capsys):
    assert benchmark.main(["soak", str(tmp_path), "--model", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("benchmark: ")
    with pytest.raises(SystemExit):
        benchmark.main(["dance"])


def test_picture_of_an_alignment(model_folder, corpus, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    arguments = [str(corpus / "0.wav"), "--model", str(model_folder), "--output", str(tmp_path / "a.png")]
    assert plot_alignment.main(arguments) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = capsys.readouterr().out.split(": ", 1)[1].strip()
    assert text == Recognizer.load(model_folder).transcribe(corpus / "0.wav").text

    soundfile.write(tmp_path / "long.wav", np.zeros(61 * 8000), 8000)
    assert plot_alignment.main([str(tmp_path / "long.wav"), *arguments[1:]]) == 2
    assert "lasts 61 s; a picture holds 60 s" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="pip install"):
        plot_alignment.plot(corpus / "0.wav", Recognizer.load(model_folder), None, tmp_path / "b.png")
