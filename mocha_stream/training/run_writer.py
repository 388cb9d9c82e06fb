"""What a training run tells while it runs: lines of its log, scalars and pictures for TensorBoard."""

import json
from pathlib import Path
from typing import Any

from .pictures import save
from .run_log import whole_lines


class RunWriter:
    """One JSON line a step in `log.jsonl`, one an epoch in `epochs.jsonl`, and scalars for TensorBoard."""

    def __init__(self, folder: Path, rank: int, step: int):
        self.folder, self.enabled, self.first_step = folder, rank == 0, step
        self.writer = None

    def __enter__(self) -> "RunWriter":
        if self.enabled:
            path = self.folder / "log.jsonl"
            kept = [line for line in whole_lines(path) if json.loads(line)["step"] < self.first_step]
            path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            self.file = path.open("a", encoding="utf-8", buffering=1)
            self.writer = _tensorboard(self.folder)
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            self.file.close()
        if self.writer is not None:
            self.writer.close()

    def step(self, values: dict[str, float]) -> None:
        if not self.enabled:
            return
        self.file.write(json.dumps(values) + "\n")
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(f"train/{name}", value, int(values["step"]))

    def epoch(self, epoch: int, step: int, wer: dict[str, float]) -> None:
        if not self.enabled:
            return
        path = self.folder / "epochs.jsonl"
        kept = [line for line in whole_lines(path) if json.loads(line)["epoch"] < epoch]
        path.write_text("\n".join([*kept, json.dumps({"epoch": epoch, "step": step, **wer})]) + "\n", encoding="utf-8")
        print(f"epoch {epoch}: {wer}", flush=True)
        if self.writer is not None:
            for name, value in wer.items():
                self.writer.add_scalar(f"dev/{name}", value, step)

    def picture(self, epoch: int, step: int, figure: Any) -> None:
        if figure is not None:
            save(figure, self.folder / "alignments" / f"epoch-{epoch:04d}.png")
            if self.writer is not None:
                self.writer.add_figure("alignment", figure, step)


def _tensorboard(folder: Path) -> Any:
    """A writer of TensorBoard events, or None where the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
