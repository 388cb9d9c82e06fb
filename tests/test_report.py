"""Figures over made-up recordings, and pages with their pictures."""

import base64
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import soundfile
import tiny

from mocha_stream.errors import ConfigError, DataError, MissingExtraError
from mocha_stream.evaluate import evaluate
from mocha_stream.recognizer import Recognizer
from mocha_stream.report import Recording, Report, notable
from mocha_stream.report_page import check_page, examples, write_page
from mocha_stream.scores import ScoredWord, Span, count_errors
from mocha_stream.training.run_log import RunLog, read_run_log


def recording(name: str, reference: str, hypothesis: str, speaker: str = "s0", duration_s: float = 2.0) -> Recording:
    counts = {"num_frames": 10, "num_tokens": 3, "num_energies": 12, "num_forced": 0, "num_rewrites": 0}
    times = dict.fromkeys(("reading_s", "recognition_s", "processor_s", "tail_s"), 0.1)
    errors = count_errors(reference, hypothesis)
    return Recording(
        name, f"{name}.wav", speaker, reference, hypothesis, errors, duration_s, **times, **counts, words=()
    )


def report(*recordings: Recording, block_s: float | None = None) -> Report:
    return Report("speech/test", None, block_s, 1, recordings, ())


def wer(groups: dict[str, dict]) -> dict[str, float | None]:
    return {name: group["wer"] for name, group in groups.items()}


# Figures


def test_error_rates_by_speaker_weigh_words_not_recordings():
    figures = report(
        recording("a", "A B C", "A B C", "x"),
        recording("b", "A", "B", "x"),
        recording("c", "A B", "A B C", "y"),
        recording("d", "", "A", "z"),
        recording("e", "A B", "", ""),
    ).figures()
    assert wer(figures["by_speaker"]) == {"x": 25.0, "y": 50.0, "z": None, "unknown": 100.0}
    assert figures["by_speaker"]["x"] == {
        "num_utterances": 2,
        "num_words": 4,
        "substitutions": 1,
        "deletions": 0,
        "insertions": 0,
        "wer": 25.0,
    }
    assert figures["wer"] == 62.5


def test_error_rates_by_length_in_order():
    durations = {12.0: "B", 3.0: "A", 25.0: "", 7.0: "A C", 4.999: "", 5.0: "A", 16.0: "A", 20.0: "A"}
    figures = report(*(recording(str(at), "A", text, duration_s=at) for at, text in durations.items())).figures()
    assert list(figures["by_length"]) == ["0 to 5 s", "5 to 10 s", "10 to 15 s", "15 to 20 s", "20 s and more"]
    assert list(wer(figures["by_length"]).values()) == [50.0, 50.0, 100.0, 0.0, 50.0]
    assert figures["by_length"]["20 s and more"]["num_utterances"] == 2


def test_of_many_speakers_the_best_the_median_and_the_worst_are_shown():
    texts = {"anna": "A B C X", "bob": "X X X X", "carl": "A B C D", "dora": "A B X X", "eva": "A X X X"}
    all_speakers = report(*(recording(name, "A B C D", text, name) for name, text in texts.items()))
    assert notable(all_speakers.figures()["by_speaker"]) == [("best", "carl"), ("median", "dora"), ("worst", "bob")]
    text = all_speakers.to_text()
    assert "by speaker, of 5:" in text
    assert [line.split()[:2] for line in text.splitlines() if ": " in line and line.startswith("  ")] == [
        ["best:", "carl"],
        ["median:", "dora"],
        ["worst:", "bob"],
    ]
    assert set(json.loads(all_speakers.to_json())["by_speaker"]) == set(texts)
    assert "median" not in report(*all_speakers.recordings[:3]).to_text()
    assert notable({"silent": {"wer": None}}) == []


def test_confidence_and_times_are_over_the_words_of_all_recordings():
    first = ScoredWord("A", 1.0, 2.0, 0.95, True, 2.5, Span(1.25, 2.25))
    second = ScoredWord("B", 1.0, 2.0, 0.95, False, 2.5, None)
    third = ScoredWord("C", 1.0, 2.0, 0.45, True, 3.0, Span(0.9, 2.0))
    both = report(
        replace(recording("a", "A C", "A B"), words=(first, second)),
        replace(recording("b", "C", "C"), words=(third,)),
        block_s=0.1,
    )
    figures = json.loads(both.to_json())
    assert figures["emission_delay_s"]["p50"] == pytest.approx((0.25 + 1.0) / 2)
    assert figures["word_start_error_ms"] == {
        "num_words": 2,
        "p50": pytest.approx(175.0),
        "p90": pytest.approx(235.0),
        "bias": pytest.approx(-75.0),
    }
    assert figures["expected_calibration_error"] == pytest.approx((2 * 0.45 + 0.55) / 3)
    assert [(each["num_words"], each["accuracy"]) for each in figures["reliability"]] == [(1, 1.0), (2, 0.5)]
    assert figures["recordings"][0]["words"][0]["spoken"] == {"start_s": 1.25, "end_s": 2.25}
    text = both.to_text()
    assert "emission delay    0.625 s median" in text
    assert "word starts       175 ms median, 235 ms at 90%, from forced alignment; bias -75 ms" in text
    assert "expected calibration error 0.483" in text
    assert re.search(r"0\.9 to 1\.0 +2 +0\.95 +0\.50", text)


def test_without_words_there_is_no_calibration():
    text = report(recording("a", "A", "")).to_text()
    assert "confidence        no words" in text
    assert "by confidence" not in text


# Which recordings are drawn


def test_examples_are_the_best_and_the_worst():
    items = [
        recording("short", "A", "A"),
        recording("silent", "", ""),
        recording("hopeless", "A B", "C D E F"),
        recording("long", "A B C", "A B C"),
        recording("too long", "A B C D", "A B C D", duration_s=61.0),
        recording("half", "A B", "A X"),
        recording("third", "A B C", "A B X"),
        recording("wrong", "A B C", "X X X"),
    ]
    best, worst = examples(items, 60.0)
    assert [item.id for item in best] == ["long", "short"]
    assert [item.id for item in worst] == ["hopeless", "wrong"]
    best, worst = examples(items[:4], 60.0)
    assert [[item.id for item in part] for part in (best, worst)] == [["long", "short"], ["hopeless"]]
    assert examples(items[1:2], 60.0) == ([], [])


# Pages


@pytest.fixture(scope="module")
def recognizer():
    return Recognizer(tiny.random_model(), tiny.tokenizer())


@pytest.fixture(scope="module")
def streamed(recognizer, tmp_path_factory):
    """Three recordings, one of whose references is what the model hears, so that some words are right."""
    folder = tmp_path_factory.mktemp("corpus")
    entries = []
    for i, text in enumerate((None, "THE LAZY DOG", "MY <BOX> OF JUGS")):
        samples = tiny.noise(2.0, seed=i)
        soundfile.write(folder / f"{i}.wav", samples, tiny.RATE)
        text = text or recognizer.transcribe(folder / "0.wav", recognizer.latencies_ms[0]).text
        entries.append({"path": f"{i}.wav", "text": text, "id": f"a|{i}<b>", "speaker": "s"})
    (folder / "all.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return evaluate(recognizer, folder, streaming=True, latency_ms=recognizer.latencies_ms[0])


class Page(HTMLParser):
    """The pictures and the text of an HTML page, whose elements all have to be closed in order."""

    def __init__(self, content: str):
        super().__init__()
        self.images: list[bytes] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            kind, data = dict(attributes)["src"].split(",")
            assert kind == "data:image/png;base64"
            self.images.append(base64.b64decode(data, validate=True))
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def pictures(path: Path) -> tuple[list[bytes], str]:
    """Those of a page, and its text."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        page = Page(content)
        return page.images, page.text
    return [(path.parent / unquote(link)).read_bytes() for link in re.findall(r"!\[.*\]\((.*)\)", content)], content


LOG = RunLog(
    [{"step": float(i), "loss": 5 - i / 300, "ctc": 6 - i / 300} for i in range(1000)],
    [{"epoch": 1.0, "step": 500.0, "wer_whole": 400.0}, {"epoch": 2.0, "step": 999.0, "wer_whole": 80.0}],
)


@pytest.mark.parametrize("ending", [".md", ".html"])
def test_page_has_all_pictures(streamed, recognizer, tmp_path, ending):
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "new" / f"my page{ending}"
    write_page(path, streamed, recognizer, "tiny", LOG)
    images, text = pictures(path)
    assert len(images) == 2 + 1 + 3, "delays and reliability, training, and an alignment of each recording"
    for number, png in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(png)
        assert np.ptp(image.imread(tmp_path / f"{number}.png")[..., :3]) > 0.9, "a picture shows something"
    assert len(set(images)) == len(images)
    assert f"{streamed.figures()['wer']:.2f}%" in text
    assert streamed.recordings[1].hypothesis in text
    write_page(path, streamed, recognizer, "tiny")
    assert len(pictures(path)[0]) == 2 + 3


def test_names_and_notes_are_no_markup(streamed, recognizer, tmp_path):
    pytest.importorskip("matplotlib")
    odd = replace(streamed, failures=("<i>.wav: is *empty*",), notes=())
    for ending in (".md", ".html"):
        write_page(tmp_path / f"a{ending}", odd, recognizer, "<tiny>")
    assert "<tiny> on " in Page((tmp_path / "a.html").read_text()).text
    assert "not used: <i>.wav: is *empty*" in Page((tmp_path / "a.html").read_text()).text
    assert "a|1<b>" in Page((tmp_path / "a.html").read_text()).text
    markdown = (tmp_path / "a.md").read_text()
    assert r"not used: \<i\>.wav: is \*empty\*" in markdown
    assert "<" not in markdown.replace(r"\<", "")


def test_page_of_whole_recordings_without_words_has_no_delays(recognizer, tmp_path):
    pytest.importorskip("matplotlib")
    write_page(tmp_path / "a.html", report(recording("a", "", "")), recognizer, "tiny")
    images, text = pictures(tmp_path / "a.html")
    assert images == []
    assert "tiny on test" in text


def test_mistakes_are_told_before_the_work(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"page\.pdf: .* \.md or \.html"):
        check_page(tmp_path / "page.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mocha-stream\[train\]'"):
        check_page(tmp_path / "page.md")


# Logs of training runs


def test_run_log(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 0, "loss": 5}\n{"step": 1, "loss": NaN}\n{"step": 2, "lo')
    log = read_run_log(tmp_path)
    assert [values["step"] for values in log.steps] == [0.0, 1.0], "the line cut short is left out"
    assert log.epochs == []
    (tmp_path / "epochs.jsonl").write_text('{"epoch": 1, "step": 1, "wer_whole": 99.5}\n')
    assert read_run_log(tmp_path).epochs == [{"epoch": 1.0, "step": 1.0, "wer_whole": 99.5}]


@pytest.mark.parametrize("line", ["nothing", "[1, 2]", '{"loss": 5}', '{"step": "soon"}', '{"step": null}'])
def test_lines_that_are_no_log(tmp_path, line):
    (tmp_path / "log.jsonl").write_text(f'{{"step": 0}}\n{line}\n')
    with pytest.raises(DataError, match=r"log\.jsonl:2: .*expected") as told:
        read_run_log(tmp_path)
    assert "\n" not in str(told.value)


def test_folders_without_a_log(tmp_path):
    with pytest.raises(DataError, match=r"no log\.jsonl"):
        read_run_log(tmp_path / "missing")
    (tmp_path / "log.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_run_log(tmp_path)
