"""Every layer against the numbers of its original, or of the exact formula where the original is wrong.

A case is `<layer>/<case>.safetensors`, the numbers, and `<case>.json`, the constructor arguments and the tolerance;
`--vectors DIR` names the folder that they are in. Whatever `expected.*` and `expected_grad.*` a case has is compared,
in float64, and the outputs in float32 as well. A dozen cases live in `tests/golden`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from mocha_stream.attention import AdditiveEnergy, hard_chunkwise, hard_monotonic, soft_chunkwise, soft_monotonic
from mocha_stream.encoders.star_transformer import StarTransformer, StreamingStarTransformer
from mocha_stream.hisan import MTHiSAN
from mocha_stream.layers import CharEmbeddingCNN, CharEmbeddingRNN, HighwayBiLSTM, HighwayNetwork, Masking, MochaDecoder

BUNDLED = sorted(path.with_suffix("") for path in (Path(__file__).parent / "golden").glob("*/*.safetensors"))
DECIDED_AGAINST = {"output_carry_state", "x_carry_state"}
"""Highway layers that hand their final state on, which leaks the future: SPEC 9.1."""


class Case:
    """A golden case in one precision: its arguments, and its tensors by group (`weight`, `input`, `expected`...)."""

    def __init__(self, path: Path, dtype: torch.dtype):
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        self.layer: str = about["layer"]
        self.constructor: dict = about["constructor"]
        self.call: dict = about["call"]
        self.tolerance: dict = about["tolerance"]
        self.meaning = {name: tensor["meaning"] for name, tensor in about["tensors"].items()}
        self.dtype = dtype
        self.groups: dict[str, dict[str, Tensor]] = {}
        for name, array in load_file(path.with_suffix(".safetensors")).items():
            group, _, rest = name.partition(".")
            tensor = torch.from_numpy(array)
            if group in ("weight", "input") and tensor.is_floating_point():
                tensor = tensor.to(dtype)
            self.groups.setdefault(group, {})[rest] = tensor
        self.input = self.groups.get("input", {})
        self.weight = self.groups.get("weight", {})
        self.expected = self.groups["expected"]
        self.expected_grad = self.groups.get("expected_grad", {})

    def arguments(self, *names: str) -> dict:
        return {name: self.constructor[name] for name in names if name in self.constructor}

    def leaf(self, name: str) -> Tensor:
        return self.input[name].clone().requires_grad_(self.input[name].is_floating_point())

    def count(self, pattern: str) -> int:
        """How many numbers the weights have at the place of `{}` in a pattern, 0, 1, 2..."""
        found = re.compile(re.escape(pattern).replace(r"\{\}", r"(\d+)"))
        return len({match[1] for name in self.weight if (match := found.match(name))})

    def windows(self, pattern: str = r"beta_w(\d+)") -> list[int]:
        return [int(match[1]) for name in self.expected if (match := re.fullmatch(pattern, name))]


Result = tuple[dict[str, Tensor], dict[str, Tensor]]
"""What a case's layer gave, by the names of `expected.*` and `expected_grad.*`."""


def fill(parameter: Tensor, value: Tensor) -> None:
    assert parameter.shape == value.shape, f"{tuple(value.shape)} in the case, {tuple(parameter.shape)} in the layer"
    with torch.no_grad():
        parameter.copy_(value)


def fill_affine(affine: nn.Linear | nn.Conv1d, case: Case, name: str) -> None:
    fill(affine.weight, case.weight[f"{name}.weight"])
    if f"{name}.bias" in case.weight:
        fill(affine.bias, case.weight[f"{name}.bias"])


def fill_bilstm(stack: nn.Module, case: Case, name: str) -> None:
    for depth, (ahead, back) in enumerate(zip(stack.ahead, stack.back, strict=True)):
        for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            fill(getattr(ahead, f"{role}_l0"), case.weight[f"{name}.{depth}.{role}_fw"])
            fill(getattr(back, f"{role}_l0"), case.weight[f"{name}.{depth}.{role}_bw"])


def ready(layer: nn.Module, case: Case) -> nn.Module:
    return layer.to(case.dtype).eval()


# ---------------------------------------------------------------- one function a layer


def highway_network(case: Case) -> Result:
    activations = {None: None, "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
    shapes = [case.weight[f"u.{index}.weight"].shape for index in range(case.count("u.{}.weight"))]
    remaining = iter(shapes)

    def make_user_layer() -> nn.Module:
        size, width = next(remaining)
        return nn.Linear(width, size, bias="u.0.bias" in case.weight)

    arguments = case.constructor | {"U_layer": make_user_layer if shapes else None}
    arguments["H_activation"] = activations[arguments.get("H_activation", "relu")]
    layer = ready(HighwayNetwork(**arguments), case)
    for name, affines in (("u", layer.U), ("h", layer.H), ("t", layer.T), ("c", layer.C)):
        assert len(affines or []) == case.count(name + ".{}.weight")
        for index, affine in enumerate(affines or []):
            fill_affine(affine, case, f"{name}.{index}")
    x, x_hw = case.leaf("x"), case.leaf("x_hw") if "x_hw" in case.input else None
    output = layer(x, x_hw)
    output.sum().backward()
    return {"output": output}, {"x": x.grad, "x_hw": x_hw.grad if x_hw is not None else None}


def highway_bilstm(case: Case) -> Result:
    layer = ready(HighwayBiLSTM(**case.constructor), case)
    for index in range(case.constructor["hw_num_layers"]):
        fill_bilstm(layer.lstm[index], case, f"layers.{index}.lstm")
        fill_affine(layer.gate[index], case, f"layers.{index}.gate")
        fill_affine(layer.convert[index], case, f"layers.{index}.convert")
    fill_affine(layer.output, case, "output")
    x = case.leaf("x")
    output = layer(x, case.input["lengths"])
    output.sum().backward()
    if not layer.batch_first:
        return {"output_fresh_state": output}, {"x_fresh_state": x.grad.transpose(0, 1)}
    other = HighwayBiLSTM(**case.constructor | {"batch_first": False}).to(case.dtype).eval()
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x.transpose(0, 1), case.input["lengths"].tolist()), output)
    return {"output_fresh_state": output}, {"x_fresh_state": x.grad}


def masking(case: Case) -> Result:
    numbers = ("mask", "highlighting_mask")
    arguments = {
        name: float(value) if name in numbers and isinstance(value, str) else value
        for name, value in case.constructor.items()
    }
    layer = Masking(**arguments)
    x = case.leaf("x")
    output = layer(x, case.input["lengths"])
    torch.testing.assert_close(layer(x, case.input["lengths"].tolist()), output, rtol=0, atol=0)
    if "cotangent" in case.input:
        output.backward(case.input["cotangent"])
    return {"output": output}, {"x": x.grad}


def character_table(case: Case) -> nn.Embedding | None:
    if case.constructor.get("emb_layer") is None:
        return None
    return nn.Embedding.from_pretrained(case.weight["embedding"].clone(), freeze=False)


def char_embedding_rnn(case: Case) -> Result:
    layer = ready(CharEmbeddingRNN(**case.constructor | {"emb_layer": character_table(case)}), case)
    fill(layer.embedding.weight, case.weight["embedding"])
    fill_bilstm(layer.lstm, case, "lstm")
    return run_characters(layer, case)


def char_embedding_cnn(case: Case) -> Result:
    layer = ready(CharEmbeddingCNN(**case.constructor | {"emb_layer": character_table(case)}), case)
    fill(layer.embedding.weight, case.weight["embedding"])
    names = sorted(range(case.count("conv.{}.weight")), key=lambda index: case.weight[f"conv.{index}.weight"].shape)
    for index, conv in zip(names, sorted(layer.convolutions, key=lambda conv: conv.weight.shape), strict=True):
        fill_affine(conv, case, f"conv.{index}")
    return run_characters(layer, case)


def run_characters(layer: nn.Module, case: Case) -> Result:
    output = layer(case.input["chars"], case.input["word_lengths"])
    torch.testing.assert_close(layer(case.input["chars"], list(case.input["word_lengths"])), output)
    output.sum().backward()
    return {"output": output}, {"embedding": layer.embedding.weight.grad}


def star_transformer(case: Case) -> Result:
    layer = ready(StarTransformer(**case.constructor), case)
    streaming = StreamingStarTransformer(
        case.constructor["hidden_size"],
        case.constructor["num_layers"],
        case.constructor["num_head"],
        case.constructor["head_dim"],
        relay_memory=None,
    )
    for index, part in enumerate(layer.layers):
        for role in "qkvo":
            fill_affine(getattr(part.ring, role), case, f"layers.{index}.ring.{role}")
            fill_affine(getattr(part.star, role), case, f"layers.{index}.star.{role}")
        fill(part.norm.weight, case.weight[f"layers.{index}.norm.weight"])
        fill(part.norm.bias, case.weight[f"layers.{index}.norm.bias"])
    if layer.position is not None:
        fill(layer.position.weight, case.weight["position"])
    data, mask = case.leaf("data"), case.input["mask"]
    nodes, relay = layer(data, mask)
    total = (case.input["cotangent_nodes"] * nodes).sum() + (case.input["cotangent_relay"] * relay).sum()
    total.backward()

    # The speech encoder with one chunk and unbounded memory is the published layer.
    streaming = ready(streaming, case)
    missing, _ = streaming.layers.load_state_dict(layer.layers.state_dict(), strict=False)
    assert not missing  # it has all but the last star step
    embeddings = data.detach()
    if layer.position is not None:
        position = torch.arange(data.shape[1]).clamp(max=layer.position.num_embeddings - 1)
        embeddings = embeddings + layer.position(position).detach()
    torch.testing.assert_close(streaming(embeddings, case.input["lengths"]), nodes)
    for row, length in enumerate(case.input["lengths"].tolist()):
        _, state = streaming.step(embeddings[row : row + 1, :length], streaming.initial_state(1))
        torch.testing.assert_close(streaming.finish(state), nodes[row : row + 1, :length])
    return {"nodes": nodes, "relay": relay}, {"data": data.grad}


def mthisan(case: Case) -> Result:
    matrix = case.input["embedding_matrix_raw"].numpy()
    layer = ready(MTHiSAN(**case.constructor | {"embedding_matrix": matrix}), case)
    torch.testing.assert_close(layer.embedding.weight.detach(), case.weight["embedding"], atol=1e-5, rtol=1e-5)
    fill(layer.embedding.weight, case.weight["embedding"])
    for name, block in (("word", layer.word_block), ("line", layer.line_block)):
        fill(block.target, case.weight[f"{name}.target"])
        for role in "qkv":
            fill_affine(getattr(block, role), case, f"{name}.{role}")
    if layer.bag is not None:
        fill_affine(layer.bag, case, "boe")
    for task, affine in enumerate(layer.classify):
        fill_affine(affine, case, f"classify.{task}")
    docs = case.input["docs"]
    logits, embeds = layer(docs, return_embeds=True)
    sum(part.sum() for part in logits).backward()

    # As ragged lists, and line by line.
    ragged = [[line.tolist() for line in row.split(layer.max_words_per_line)] for row in docs]
    torch.testing.assert_close(layer(ragged, return_embeds=True), (logits, embeds))
    state = layer.initial_state(len(docs))
    for lines in zip(*ragged, strict=True):
        labels, state = layer.step(lines, state, return_embeds=True)
    torch.testing.assert_close(labels, (logits, embeds))
    return {"doc_embeds": embeds, **{f"logits.{i}": part for i, part in enumerate(logits)}}, {
        "embedding": layer.embedding.weight.grad
    }


def energy(case: Case, name: str) -> AdditiveEnergy:
    """One of the two energies of a case, `monotonic` or `chunk`; the published v bias and r are one number in ours."""
    attention, enc_dim = case.weight[f"{name}.w_enc"].shape
    layer = AdditiveEnergy(enc_dim, case.weight[f"{name}.w_dec"].shape[1], attention)
    fill_energy(layer, case, name)
    return layer.to(case.dtype)


def fill_energy(layer: AdditiveEnergy, case: Case, name: str) -> None:
    fill(layer.key.weight, case.weight[f"{name}.w_enc"])
    fill(layer.key.bias, case.weight[f"{name}.b"])
    fill(layer.query.weight, case.weight[f"{name}.w_dec"])
    fill(layer.v, case.weight[f"{name}.v_direction"])
    fill(layer.g, case.weight[f"{name}.v_gain"])
    fill(layer.r, case.weight[f"{name}.v_bias"] + case.weight[f"{name}.r"])


def mocha_energy(case: Case) -> Result:
    layer = energy(case, "monotonic")
    frames, state = case.leaf("encoder"), case.leaf("decoder_state")
    output = layer(layer.query(state[:, None]), layer.key(frames))[:, 0]
    (output * case.input["cotangent"]).sum().backward()
    output = output * valid_frames(case)
    return {"energy": output}, {"encoder": frames.grad, "decoder_state": state.grad}


def valid_frames(case: Case) -> Tensor:
    lengths, size = case.input["lengths"], case.input["encoder"].shape[1]
    return torch.arange(size) < lengths[:, None]


def mocha_soft(case: Case) -> Result:
    if "encoder" not in case.input:
        return mocha_soft_step(case)
    frames, states = case.leaf("encoder"), case.leaf("decoder_states")  # (B, S, E) and (U, B, Q)
    monotonic, chunk = (energy(case, name) for name in ("monotonic", "chunk"))
    stop = monotonic(monotonic.query(states.transpose(0, 1)), monotonic.key(frames))
    look = chunk(chunk.query(states.transpose(0, 1)), chunk.key(frames))
    alpha = soft_monotonic(stop, case.input["lengths"])
    valid = valid_frames(case)[:, None]
    outputs = {"monotonic_energy": stop * valid, "chunk_energy": look * valid, "alpha": alpha}
    outputs |= {f"beta_w{window}": soft_chunkwise(alpha, look, window) for window in case.windows()}
    outputs = {name: value.transpose(0, 1) for name, value in outputs.items()}
    grads = {}
    if case.expected_grad:
        weighed = re.search(r"beta_w\d+", case.meaning["expected_grad.encoder"])
        assert weighed, "the case does not say which window its gradients are of"
        total = (case.input["cotangent_alpha"] * outputs["alpha"]).sum()
        (total + (case.input["cotangent_beta"] * outputs[weighed[0]]).sum()).backward()
        grads = {"encoder": frames.grad, "decoder_states": states.grad}
    return outputs, grads


def mocha_soft_step(case: Case) -> Result:
    alpha = soft_monotonic(
        case.input["monotonic_energy"][:, None], case.input.get("lengths"), case.input["previous_alpha"]
    )
    look = case.input["chunk_energy"][:, None]
    betas = {f"beta_w{window}": soft_chunkwise(alpha, look, window)[:, 0] for window in case.windows()}
    return {"alpha": alpha[:, 0]} | betas, {}


def mocha_stress(case: Case) -> Result:
    logits = case.leaf("logits")
    alpha = soft_monotonic(logits[None], previous=case.input["previous_alpha"][None])
    assert alpha.isfinite().all()
    assert (alpha >= 0).all()
    assert (alpha.sum(-1) <= 1 + 1e-5).all()
    (case.input["cotangent_alpha"] * alpha[0]).sum().backward()
    look = case.input["chunk_energy"][None]
    betas = {f"beta_w{window}": soft_chunkwise(alpha, look, window)[0] for window in case.windows()}
    return {"alpha": alpha[0]} | betas, {"logits": logits.grad}


def mocha_hard(case: Case) -> Result:
    outputs = {}
    for rule in ("last", "stop"):
        position, positions = torch.zeros_like(case.input["lengths"]), []
        for energies in case.input["monotonic_energy"]:
            position = hard_monotonic(energies, case.input["lengths"], position, on_miss=rule)
            positions.append(position)
        outputs[f"position_{rule}"] = torch.stack(positions)
        for window in case.windows(rf"beta_{rule}_w(\d+)"):
            betas = [
                hard_chunkwise(position, look, window)
                for position, look in zip(positions, case.input["chunk_energy"], strict=True)
            ]
            outputs[f"beta_{rule}_w{window}"] = torch.stack(betas)
    return outputs, {}


def mocha_decoder(case: Case) -> Result:
    names = ("enc_dim", "dec_dim", "embedding_dim", "att_dim", "out_dim", "vocab_size", "chunk_size", "sos_id")
    layer = ready(MochaDecoder(**case.arguments(*names), on_miss="last"), case)
    fill_energy(layer.attention.stop_energy, case, "attention.monotonic")
    fill_energy(layer.attention.chunk_energy, case, "attention.chunk")
    fill(layer.embedding.weight, case.weight["embedding"])
    for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        fill(getattr(layer.rnn, f"{role}_l0"), case.weight[f"rnn.{role}"])
    fill(layer.combine.weight, case.weight["combine"])
    fill_affine(layer.vocab, case, "vocab")
    frames, lengths, start = (case.input[name] for name in ("encoder", "lengths", "initial_state"))
    logits, alpha = layer(frames, lengths, case.input["targets"], start)
    greedy = layer.greedy(frames, lengths, case.constructor["max_dec_length"], start)
    return {"logits": logits, "alpha": alpha, **{f"greedy_{k}": v for k, v in greedy._asdict().items()}}, {}


LAYERS: dict[str, Callable[[Case], Result]] = {
    layer.__name__: layer
    for layer in (
        highway_network,
        highway_bilstm,
        masking,
        char_embedding_rnn,
        char_embedding_cnn,
        star_transformer,
        mthisan,
        mocha_energy,
        mocha_soft,
        mocha_stress,
        mocha_hard,
        mocha_decoder,
    )
}


# ---------------------------------------------------------------- the tests


def compare(got: dict[str, Tensor], want: dict[str, Tensor], case: Case) -> None:
    for name, value in want.items():
        if name in DECIDED_AGAINST:
            continue
        result = got[name].detach()
        assert result.dtype == (case.dtype if result.is_floating_point() else value.dtype), name
        np.testing.assert_allclose(
            result.double().numpy(), value.double().numpy(), **case.tolerance, equal_nan=False, err_msg=name
        )


def check(path: Path) -> None:
    for dtype in (torch.float64, torch.float32):
        case = Case(path, dtype)
        assert case.layer in LAYERS, f"no layer of ours is called {case.layer!r}"
        inputs = {name: tensor.clone() for name, tensor in case.input.items()}
        outputs, grads = LAYERS[case.layer](case)
        compare(outputs, case.expected, case)
        if dtype == torch.float64:
            compare(grads, case.expected_grad, case)
        for name, tensor in case.input.items():
            torch.testing.assert_close(tensor, inputs[name], rtol=0, atol=0, equal_nan=True, msg=f"{name} was written")


def test_case(golden_case: Path) -> None:
    check(golden_case)


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_bundled_case(path: Path) -> None:
    check(path)
