"""The training loop: `mocha-stream train RECIPE.toml`, alone or as several processes under `torchrun`.

All chance is a function of the seed and the step or utterance, never of what ran before, so a run that resumes, or
is shared among more processes, does what the undisturbed one does.
"""

import math
import os
import resource
import sys
import time
from pathlib import Path
from pickle import UnpicklingError

import jiwer
import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from ..config import ModelConfig, to_toml
from ..corpus import normalise, read_lines
from ..errors import ConfigError, DataError
from ..model import MochaModel
from ..model_folder import load_model, save_model
from ..search import GreedySearch, token_lists
from ..tokenizer import Tokenizer
from ..writers import write_whole
from .augment import augment
from .data import Example, feature_statistics, make_batches, pad, read_examples, share
from .losses import Batch, Conditions, Diagnosis, Losses, compute, text_loss
from .pictures import draw
from .recipe import Recipe, read_recipe
from .run_writer import RunWriter
from .splice import add_words, splice
from .teacher import Teacher

LONGEST_TEXT = 100
"""Tokens of a line of text that the decoder learns from; the rest of the line is left out."""

PADDED = 64
"""Features that the length of a batch is a multiple of."""

TIMED_STEPS = 20
"""Steps after which a run tells its speed and memory."""


def train(recipe_path: Path, resume: bool = False, assignments: tuple[str, ...] | list[str] = ()) -> Path:
    """Trains as the recipe says and returns the folder of the finished model.

    Raises:
        ConfigError, DataError, AudioError: a recipe or corpus that cannot be used.
    """
    recipe = read_recipe(recipe_path, list(assignments))
    folder = recipe_path.parent / recipe.run
    if resume and not _checkpoints(folder):
        raise DataError(f"{folder}: holds no checkpoint to resume from; start without --resume")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if world > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        model = Trainer(recipe, recipe_path.parent, rank, world, device, resume).run()
        if world > 1:
            # Gloo's thread drops the tensors of the last sum after the sum is known, and aborts the process where
            # Python has ended by then; who waits here lets it.
            dist.barrier()
        return model
    finally:
        if world > 1:
            dist.destroy_process_group()


class Trainer:
    """One process of a training run, which begins anew unless it is to `resume` the one in the recipe's folder."""

    def __init__(self, recipe: Recipe, root: Path, rank: int, world: int, device: torch.device, resume: bool = False):
        self.recipe, self.rank, self.world, self.device, self.resume = recipe, rank, world, device, resume
        # In which the dev set is decoded after an epoch; the middle one, as a session does.
        self.preview_chunk = sorted(recipe.model.encoder.chunks)[len(recipe.model.encoder.chunks) // 2]
        self.views = 2 if recipe.loss.consistency else 1  # of each utterance in a batch
        self.folder, self.hop_s = root / recipe.run, recipe.model.features.hop_s
        self.folder.mkdir(parents=True, exist_ok=True)
        data = recipe.data
        corpora, cache = [root / name for name in data.train], root / data.cache
        self.lines = self._text([root / name for name in data.text])
        if rank > 0:
            dist.barrier()  # the first process computes the features
        features = recipe.model.features
        dev = read_examples([root / data.dev], features, (1.0,), cache, os.cpu_count() or 1)
        sets = [read_examples([corpus], features, data.speeds, cache, os.cpu_count() or 1) for corpus in corpora]
        if rank == 0 and world > 1:
            dist.barrier()
        self.teacher = Teacher(root / data.teacher, self.hop_s) if recipe.loss.teacher else None
        if self.teacher:
            sets = [self.teacher.add_to(corpus, part) for corpus, part in zip(corpora, sets, strict=True)]
        if data.splice:
            sets = [add_words(root / data.words, corpus, part) for corpus, part in zip(corpora, sets, strict=True)]
        # Each corpus by itself: an id may be in several of them.
        bounds = data.shortest_s / self.hop_s, data.longest_s / self.hop_s
        groups = [group for part in sets for group in _group(part, *bounds)]
        self.variants = sorted(groups, key=lambda group: group[0].id)
        self.dev = [dev[i] for i in np.linspace(0, len(dev) - 1, min(data.dev_utterances, len(dev))).astype(int)]
        if not self.variants:
            raise DataError(
                f"no utterance lasts {data.shortest_s} to {data.longest_s} s; check data.train and the bounds"
            )
        begun, begun_tokenizer = load_model(root / recipe.init) if recipe.init else (None, None)
        self.tokenizer = begun_tokenizer or self._tokenizer([root / name for name in recipe.tokenizer.text])

        torch.manual_seed(recipe.training.seed)
        self.model = MochaModel(ModelConfig(**{**vars(recipe.model), "vocab_size": len(self.tokenizer)})).to(device)
        measured = self._measured()
        self.mean, deviation = feature_statistics(measured)
        self.model.encoder.frontend.set_statistics(torch.from_numpy(self.mean), torch.from_numpy(deviation))
        if begun is not None:
            self._begin_with(begun)
            self.mean = begun.encoder.frontend.mean.numpy()
        self.imitate: nn.Linear | None = None  # says what the teacher would, from an encoder frame
        if self.teacher:
            self.teacher.measure(measured)
            self.imitate = nn.Linear(recipe.model.encoder.width, self.teacher.size).to(device)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.parameters += self.imitate.parameters() if self.imitate else []
        self.optimizers = self._optimizers()
        self.step, self.epoch, self.position = 0, 0, 0
        self.timed: list[tuple[float, float]] = []  # seconds of audio in the first steps, and seconds they took

    # ------------------------------------------------------------ preparation

    def _tokenizer(self, texts: list[Path]) -> Tokenizer:
        path = self.folder / "tokenizer.model"
        if self.rank == 0 and not (self.resume and path.exists()):
            lines = [group[0].text for group in self.variants]
            if texts:
                lines = [normalise(line) for text in texts for line in read_lines(text)]
            tokenizer = Tokenizer.train(lines, self.recipe.model.vocab_size)
            write_whole(path, tokenizer.serialized)
        if self.world > 1:
            dist.barrier()
        return Tokenizer.load(path)

    def _begin_with(self, begun: MochaModel) -> None:
        """Takes the weights of a model, whose dropout, chunks or the like need not be those of the recipe."""
        theirs, ours = ([(name, w.shape) for name, w in m.state_dict().items()] for m in (begun, self.model))
        if theirs != ours or begun.config.features != self.model.config.features:
            raise ConfigError(
                f"init is {self.recipe.init}, whose weights or features do not fit [model]; take those settings from "
                "its config.toml"
            )
        self.model.load_state_dict(begun.state_dict())

    def _text(self, paths: list[Path]) -> list[str]:
        """The lines for the decoder's loss on text."""
        if self.recipe.loss.text == 0:
            return []
        lines = [normalise(line) for path in paths for line in read_lines(path)]
        if not any(lines):
            raise ConfigError("loss.text is above 0 but data.text names no text; name files, or set loss.text=0")
        return [line for line in lines if line]

    def _measured(self) -> list[Example]:
        """At most 2000 utterances, evenly spread, that statistics are taken from."""
        chosen = np.linspace(0, len(self.variants) - 1, min(2000, len(self.variants))).astype(int)
        return [self.variants[i][0] for i in chosen]

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Muon for the matrices inside, AdamW for embeddings, outputs, convolutions and vectors (arXiv 2502.16982).

        Muon is scaled to updates of AdamW's size, so both share one learning rate.
        """
        rate, decay = self.recipe.training.learning_rate, self.recipe.training.weight_decay
        outer = ("ctc", "decoder.embed", "decoder.output")
        inner: list[Tensor] = []
        others: list[Tensor] = []
        vectors: list[Tensor] = []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                group = others if parameter.dim() > 2 or name.startswith(outer) else inner
                (vectors if parameter.dim() < 2 else group).append(parameter)
        others += self.imitate.parameters() if self.imitate else []
        muon = torch.optim.Muon(inner, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        groups = [{"params": others, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        return [muon, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)]

    # ------------------------------------------------------------ the run

    def run(self) -> Path:
        training = self.recipe.training
        if self.resume:
            self._restore()
        elif self.rank == 0:
            for old in [
                *self.folder.glob("*.jsonl"),
                *self.folder.glob("checkpoint-*.pt"),
                *self.folder.glob("epoch-*.safetensors"),
            ]:
                old.unlink()
        if self.rank == 0:
            (self.folder / "recipe.toml").write_text(to_toml(self.recipe), encoding="utf-8")
            print(self._summary(), flush=True)
        with RunWriter(self.folder, self.rank, self.step) as log:
            while self.epoch < training.epochs:
                self._run_epoch(log)
                self.epoch, self.position = self.epoch + 1, 0
                self._save_epoch()
                log.epoch(self.epoch, self.step, self._decode_dev())
                if self.rank == 0 and self.epoch % training.picture_epochs == 0:
                    log.picture(
                        self.epoch, self.step, draw(self.model, self.tokenizer, self.dev[:2], self.preview_chunk)
                    )
                self._save_checkpoint()
        return self._finish()

    def _hours(self) -> float:
        """Of training audio, each utterance counted once."""
        return sum(group[0].num_frames for group in self.variants) * self.hop_s / 3600

    def _summary(self) -> str:
        size = sum(p.numel() for p in self.parameters) / 1e6
        return (
            f"{size:.2f} M parameters, {len(self.variants)} utterances, {self._hours():.1f} h, "
            f"{self.world} process(es) on {self.device.type}, from epoch {self.epoch} step {self.step}"
        )

    def _speed(self) -> str:
        audio_s, seconds = np.sum(self.timed, axis=0)
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return (
            f"the first {len(self.timed)} steps: {audio_s / seconds:.0f} s of audio a second, "
            f"at most {peak / 2**30:.1f} GiB in this process"
        )

    def _run_epoch(self, log: RunWriter) -> None:
        training, items = self.recipe.training, self._items(self.epoch)
        lengths = np.array([sum(example.num_frames for example in item) for item in items])
        frames_per_batch = round(training.batch_s / self.hop_s / self.views)
        batches = make_batches(lengths, frames_per_batch, self.epoch, training.seed)
        bar = tqdm(
            range(self.position, len(batches)),
            f"epoch {self.epoch + 1}",
            total=len(batches),
            initial=self.position,
            disable=self.rank > 0,
            mininterval=5.0,
        )
        for self.position in bar:
            started = time.perf_counter()
            batch, progress = batches[self.position], self.epoch + self.position / len(batches)
            changed = self.recipe.augment.start <= progress / training.epochs < self.recipe.augment.end
            parts = [
                self._load([items[i] for i in rows], changed)
                for part in range(training.accumulate)
                if len(rows := share(batch, lengths, part * self.world + self.rank, training.accumulate * self.world))
            ]
            num_tokens = self.views * sum(len(self._target(items[i])) for i in batch)
            values = self._train_step(parts, num_tokens, progress)
            values |= {
                "step": self.step,
                "epoch": self.epoch + 1,
                "audio_s": round(float(lengths[batch].sum()) * self.hop_s, 2),
                "seconds": round(time.perf_counter() - started, 3),
            }
            log.step(values)
            bar.set_postfix(loss=f"{values['loss']:.3f}", refresh=False)
            self.step += 1
            if len(self.timed) < TIMED_STEPS:
                self.timed.append((values["audio_s"], values["seconds"]))
                if len(self.timed) == TIMED_STEPS and self.rank == 0:
                    bar.write(self._speed())
            if self.step % training.checkpoint_steps == 0 and self.position + 1 < len(batches):
                self.position += 1
                self._save_checkpoint()

    def _items(self, epoch: int) -> list[list[Example]]:
        """The epoch's examples: each utterance at one of its speeds, some cut and put together anew, some of the
        others followed by another one.
        """
        data = self.recipe.data
        random = np.random.default_rng((self.recipe.training.seed, epoch, 1))
        chosen = [group[random.integers(len(group))] for group in self.variants]
        is_cut = random.random(len(chosen)) < data.splice
        spliced = splice([chosen[i] for i in np.flatnonzero(is_cut)], self.hop_s, random)
        items: list[list[Example]] = []
        for i in random.permutation(np.flatnonzero(~is_cut)):
            joins = items and random.random() < data.join and len(items[-1]) == 1
            if joins and (items[-1][0].num_frames + chosen[i].num_frames) <= data.longest_s / self.hop_s:
                items[-1].append(chosen[i])
            else:
                items.append([chosen[i]])
        return items + spliced

    def _target(self, item: list[Example]) -> list[int]:
        return [token for example in item for token in self.tokenizer.encode(example.text)]

    def _load(self, items: list[list[Example]], changed: bool) -> Batch:
        """Reads the features of this process's share of a batch, and augments them if they are to be changed: first
        all of one view, then the next.
        """
        training = self.recipe.training
        views: list[list[np.ndarray]] = [[] for _ in range(self.views)]
        for item in items:
            random = np.random.default_rng((training.seed, self.epoch, *item[0].id.encode()))
            features = np.concatenate([example.load() for example in item])
            for rows in views:
                if changed:
                    rows.append(augment(features, self.hop_s, self.mean, self.recipe.augment, random))
                else:
                    rows.append(features)
        features, lengths = pad([row for rows in views for row in rows], PADDED)
        tokens, token_lengths = pad([np.array(self._target(item), np.int64) for item in items] * self.views, 8)
        arrays = [features, lengths, tokens, token_lengths]
        if self.teacher:
            told = [self.teacher.targets(item) for item in items] * self.views
            arrays.append(pad(told, PADDED // self.model.encoder.frontend.stride)[0])
        return Batch(*(torch.from_numpy(array).to(self.device) for array in arrays))

    def _train_step(self, parts: list[Batch], num_tokens: int, progress: float) -> dict[str, float]:
        """One update from a batch in parts; returns what the log shows of it. `progress` counts epochs."""
        loss, training = self.recipe.loss, self.recipe.training
        torch.manual_seed(hash((training.seed, self.step, self.rank)) % 2**63)
        conditions = self._conditions(progress)
        rate = self._learning_rate(progress)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

        self.model.train()
        for parameter in self.parameters:
            parameter.grad = None
        text = self._text_loss()
        if text.requires_grad:
            (loss.text * text).backward()
        sums = torch.zeros(2 + len(Losses._fields) + len(Diagnosis._fields), device=self.device)
        sums[0], sums[-1] = loss.text * text.detach(), text.detach()
        for batch in parts:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=training.bfloat16):
                losses, diagnosis, _ = compute(self.model, batch, conditions, self.imitate)
            total = self._total(losses) / max(1, num_tokens)
            total.backward()
            sums[:-1] += torch.stack([value.detach().float() for value in (total, *losses, *diagnosis)])
        norm = self._share_gradients(sums)
        torch.nn.utils.clip_grads_with_norm_(self.parameters, training.clip_norm, norm)
        if bool(torch.isfinite(norm)):
            for optimizer in self.optimizers:
                optimizer.step()
        value, token, ctc, quantity, synchrony, consistency, teacher, correct, mass, delay, text_value = sums.tolist()
        n = max(1, num_tokens)
        return {
            "loss": value,
            "token": token / n,
            "ctc": ctc / n,
            "quantity": quantity / n,
            "synchrony": synchrony / n,
            "consistency": consistency / n,
            "teacher": teacher / n,
            "text": text_value,
            "accuracy": correct / n,
            "mass": mass / n,
            "delay": delay / n,
            "gradient_norm": float(norm),
            "learning_rate": rate,
            "chunk": conditions.chunk or 0,
        }

    def _conditions(self, progress: float) -> Conditions:
        """Of the next update. `progress` counts epochs."""
        loss, training = self.recipe.loss, self.recipe.training
        chunks = [*self.recipe.model.encoder.chunks, None]
        trusted = progress >= loss.synchrony_from * training.epochs
        risen = min(1.0, progress / (loss.noise_rise * training.epochs)) if loss.noise_rise else 1.0
        return Conditions(
            chunk=chunks[np.random.default_rng((training.seed, self.step)).integers(len(chunks))],
            noise=loss.noise * risen,
            discount=loss.discount,
            delay_limit=loss.delay_limit if trusted else None,
            smoothing=loss.label_smoothing,
            synchronous=loss.synchrony > 0 and trusted,
            paired=self.views == 2,
        )

    def _total(self, losses: Losses) -> Tensor:
        weights = self.recipe.loss
        return (
            (1 - weights.ctc) * losses.token
            + weights.ctc * losses.ctc
            + weights.quantity * losses.quantity
            + weights.synchrony * losses.synchrony
            + weights.consistency * losses.consistency
            + weights.teacher * losses.teacher
        )

    def _text_loss(self) -> Tensor:
        """This process's part of the decoder's loss per token on the lines of this update."""
        if not self.lines:
            return torch.zeros((), device=self.device)
        training = self.recipe.training
        chosen = np.random.default_rng((training.seed, self.step, 2)).integers(
            len(self.lines), size=self.recipe.data.text_lines
        )
        rows = [np.array(self.tokenizer.encode(self.lines[i])[:LONGEST_TEXT], np.int64) for i in chosen]
        num_tokens, rows = sum(map(len, rows)), rows[self.rank :: self.world]
        if not rows:
            return torch.zeros((), device=self.device)
        tokens, lengths = (torch.from_numpy(part).to(self.device) for part in pad(rows, 8))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=training.bfloat16):
            return text_loss(self.model, tokens, lengths) / num_tokens

    def _share_gradients(self, sums: Tensor) -> Tensor:
        """Adds up gradients and `sums` over the processes; returns the norm of the whole gradient."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        if self.world > 1:
            flat = torch.cat([sums, *(gradient.reshape(-1) for gradient in gradients)])
            dist.all_reduce(flat)
            sums.copy_(flat[: len(sums)])
            pieces = flat[len(sums) :].split([p.numel() for p in self.parameters])
            for parameter, piece in zip(self.parameters, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients)

    def _learning_rate(self, progress: float) -> float:
        """Linear warm-up, the full rate as long as it is held, then a half cosine to zero at the last epoch's end."""
        training = self.recipe.training
        warm = min(1.0, (self.step + 1) / max(1, training.warmup_steps))
        fallen = (progress / training.epochs - training.hold) / (1 - training.hold)
        return training.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, fallen))))

    # ------------------------------------------------------------ after an epoch

    @torch.no_grad()
    def _decode_dev(self) -> dict[str, float]:
        """Word error rates on the dev utterances, in percent: greedy MoChA and greedy CTC, in chunks and whole."""
        self.model.eval()
        result = {}
        mine = sorted(self.dev[self.rank :: self.world], key=lambda example: example.num_frames)
        for name, chunk in (("chunks", self.preview_chunk), ("whole", None)):
            errors = torch.zeros(3)
            for start in range(0, len(mine), 16):
                errors += self._decode(mine[start : start + 16], chunk)
            if self.world > 1:
                dist.all_reduce(errors)
            result[f"wer_{name}"], result[f"wer_ctc_{name}"] = (errors[:2] / errors[2] * 100).tolist()
        return {key: round(value, 2) for key, value in result.items()}

    def _decode(self, examples: list[Example], chunk: int | None) -> Tensor:
        """Word errors of MoChA and of CTC, and words, in one batch."""
        features, lengths = pad([example.load() for example in examples])
        x, sizes = torch.from_numpy(features).to(self.device), torch.from_numpy(lengths).to(self.device)
        frames, sizes = self.model.encoder(x, sizes, chunk)
        search = GreedySearch(self.model)
        tokens, _ = search.step(frames, search.initial_state(len(frames)), sizes)
        best = self.model.ctc(frames).argmax(-1)
        errors = torch.zeros(3)
        for i, found in enumerate(token_lists(tokens, len(frames))):
            labels = torch.unique_consecutive(best[i, : sizes[i]])
            hypotheses = self.tokenizer.decode(found), self.tokenizer.decode(labels[labels != 0].tolist())
            for k, hypothesis in enumerate(hypotheses):
                measured = jiwer.process_words(examples[i].text, hypothesis)
                errors[k] += measured.substitutions + measured.deletions + measured.insertions
            errors[2] += len(examples[i].text.split())
        return errors

    # ------------------------------------------------------------ checkpoints

    def _save_checkpoint(self) -> None:
        """Everything needed to go on exactly; the two newest are kept."""
        if self.rank > 0:
            return
        state = {
            "model": self.model.state_dict(),
            "imitate": self.imitate.state_dict() if self.imitate else {},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
        }
        path = self.folder / f"checkpoint-{self.step:08d}.pt"
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        for old in _checkpoints(self.folder)[:-2]:
            old.unlink()

    def _restore(self) -> None:
        """Goes on from the newest whole checkpoint. Raises DataError where there is none."""
        for path in reversed(_checkpoints(self.folder)):
            try:
                state = torch.load(path, map_location=self.device, weights_only=True)
            except (RuntimeError, EOFError, OSError, UnpicklingError) as error:
                print(f"{path}: is not whole ({str(error).splitlines()[0]:.80}); trying the one before", flush=True)
                continue
            break
        else:
            raise DataError(f"{self.folder}: holds no whole checkpoint to resume from; start without --resume")
        try:
            self.model.load_state_dict(state["model"])
            if self.imitate:
                self.imitate.load_state_dict(state.get("imitate", {}))
            for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(values)
        except (RuntimeError, ValueError):
            raise DataError(
                f"{path}: the checkpoint is of another model than the recipe's; start without --resume"
            ) from None
        self.step, self.epoch, self.position = state["step"], state["epoch"], state["position"]

    def _save_epoch(self) -> None:
        if self.rank > 0:
            return
        path = self.folder / f"epoch-{self.epoch:04d}.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}, path)
        for old in sorted(self.folder.glob("epoch-*.safetensors"))[: -self.recipe.training.average]:
            old.unlink()

    def _finish(self) -> Path:
        """Averages the last epochs and writes the model folder."""
        folder = self.folder / "model"
        if self.world > 1:
            dist.barrier()
        averaged = average_weights(sorted(self.folder.glob("epoch-*.safetensors")))
        self.model.load_state_dict(averaged)
        if self.rank == 0:
            save_model(self.model, self.tokenizer, folder, "", getattr(torch, self.recipe.training.weights))
        if self.world > 1:
            dist.barrier()
        self.model.load_state_dict(load_model(folder)[0].state_dict())  # as they were rounded
        wer = self._decode_dev()
        if self.rank == 0:
            (folder / "README.md").write_text(self._card(wer), encoding="utf-8")
            print(f"{folder}: {self.epoch} epochs, {wer}", flush=True)
        return folder

    def _card(self, wer: dict[str, float]) -> str:
        recipe = self.recipe
        measured = ", ".join(f"{name} {value}" for name, value in wer.items())
        return (
            f"# {recipe.name}\n\n{recipe.description}\n\nTrained for {self.epoch} epochs of {self._hours():.1f} h "
            f"({self.step} updates). Word error rate on {len(self.dev)} dev utterances, percent: {measured}.\n"
        )


def _checkpoints(folder: Path) -> list[Path]:
    """From the oldest to the newest."""
    return sorted(folder.glob("checkpoint-*.pt"))


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in load_file(path).items():
            total[name] = total.get(name, torch.zeros_like(tensor, dtype=torch.float64)) + tensor.double() / len(paths)
    return {name: tensor.float() for name, tensor in total.items()}


def _group(examples: list[Example], shortest: float, longest: float) -> list[list[Example]]:
    """The speeds of each utterance together, in the order of their ids; those out of bounds are left out."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        if shortest <= example.num_frames <= longest and example.text:
            groups.setdefault(example.id, []).append(example)
    return [groups[name] for name in sorted(groups)]
