"""A network of the sizes of Whisper tiny.en with random weights, for speed where the real ones cannot be fetched.

What it writes is noise, so its length is given; all else is what faster-whisper does with the real weights: features
of 30 s, encoder, and decoder with a beam of 5. Sizes: Radford et al. 2022, arXiv 2212.04356, table 1. Imported by
`worker.py` in whichever interpreter has faster-whisper.
"""

from pathlib import Path

import numpy as np
from ctranslate2.specs import whisper_spec
from tokenizers import Tokenizer, models

WIDTH, LAYERS, HEADS, MELS, KERNEL = 384, 4, 6, 80, 3
FRAMES, POSITIONS = 1500, 448
NUM_WORDS = 50_256
TIMES = [f"<|{i / 50:.2f}|>" for i in range(1501)]
MARKS = ["endoftext", "startoftranscript", *(f"language{i}" for i in range(99)), "translate", "transcribe"]
MARKS += ["startoflm", "startofprev", "nospeech", "notimestamps"]
TOKENS = [*(f"word{i}" for i in range(NUM_WORDS)), *(f"<|{mark}|>" for mark in MARKS), *TIMES]
END = TOKENS.index("<|endoftext|>")


def write(folder: Path) -> None:
    """Writes the model folder that `faster_whisper.WhisperModel` opens."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def fill_norm(norm) -> None:
        norm.gamma, norm.beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)

    def fill_linears(linears, *shapes: tuple[int, int]) -> None:
        for linear, shape in zip(linears, shapes, strict=True):
            linear.weight, linear.bias = weights(*shape), np.zeros(shape[0], np.float32)

    def fill_attention(attention, *shapes: tuple[int, int]) -> None:
        fill_norm(attention.layer_norm)
        fill_linears(attention.linear, *shapes, (WIDTH, WIDTH))

    spec = whisper_spec.WhisperSpec(LAYERS, HEADS, LAYERS, HEADS)
    for part, positions in ((spec.encoder, FRAMES), (spec.decoder, POSITIONS)):
        part.position_encodings.encodings = weights(positions, WIDTH)
        fill_norm(part.layer_norm)
        for layer in part.layer:
            fill_attention(layer.self_attention, (3 * WIDTH, WIDTH))
            if part is spec.decoder:
                fill_attention(layer.attention, (WIDTH, WIDTH), (2 * WIDTH, WIDTH))
            fill_norm(layer.ffn.layer_norm)
            fill_linears((layer.ffn.linear_0, layer.ffn.linear_1), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
    for conv, size in ((spec.encoder.conv1, MELS), (spec.encoder.conv2, WIDTH)):
        conv.weight, conv.bias = weights(WIDTH, size, KERNEL), np.zeros(WIDTH, np.float32)
    spec.decoder.embeddings.weight = weights(len(TOKENS), WIDTH)
    spec.decoder.projection.weight = spec.decoder.embeddings.weight
    spec.decoder.scale_embeddings = False

    spec.register_vocabulary(TOKENS)
    spec.config.suppress_ids, spec.config.suppress_ids_begin, spec.config.lang_ids = [], [], []
    spec.config.alignment_heads = [(0, 0)]
    spec.validate()
    spec.optimize("int8")
    spec.save(str(folder))
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token=TOKENS[0]))
    tokenizer.save(str(folder / "tokenizer.json"))
