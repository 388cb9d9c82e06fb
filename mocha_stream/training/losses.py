"""The training losses, all summed over the batch; the trainer divides by the tokens of the whole batch.

CTC is the second task of the encoder; the others act on the expected alignment of MoChA. Letters as in `streaming.py`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import torchaudio.functional
from torch import Tensor, nn

from ..attention import Alignment
from ..model import MochaModel
from ..streaming import length_mask


class Batch(NamedTuple):
    features: Tensor  # (B, T, M)
    feature_lengths: Tensor  # (B,)
    tokens: Tensor  # (B, U), zeros after a row's end
    token_lengths: Tensor  # (B,)
    teacher: Tensor | None = None  # (B, S, K), what a larger model makes of each encoder frame


class Losses(NamedTuple):
    """Each a sum over the batch."""

    token: Tensor  # cross-entropy of the decoder, smoothed
    ctc: Tensor
    quantity: Tensor  # expected stops too few or too many
    synchrony: Tensor  # frames between the expected stops and those of CTC; 0 unless asked for
    consistency: Tensor  # between what CTC says of two views of an utterance; 0 unless the batch has them
    teacher: Tensor  # between what is made of a frame and what a larger model makes of it; 0 unless the batch has that


class Diagnosis(NamedTuple):
    """What the log shows beside the losses, summed over the batch."""

    correct: Tensor  # tokens that the teacher-forced decoder gets right
    mass: Tensor  # alpha, summed: tokens that find their stop
    delay: Tensor  # frames that the expected stops come after those of CTC; 0 unless synchrony is computed


class Conditions(NamedTuple):
    """What an update is computed under."""

    chunk: int | None = None  # of the encoder, in frames; None hears the whole
    noise: float = 0.0  # standard deviation, on the stop energies
    discount: float = 0.0  # share that is taken off the probability to stop
    delay_limit: int | None = None  # frames after its end, by CTC, after which a token may not stop any more
    smoothing: float = 0.0  # of labels
    synchronous: bool = False  # whether to compute the synchrony loss
    paired: bool = False  # whether each half of the batch is a view of the same utterances


def compute(
    model: MochaModel, batch: Batch, conditions: Conditions, imitate: nn.Linear | None = None
) -> tuple[Losses, Diagnosis, Alignment]:
    """Everything from one pass over a batch of utterances.

    `imitate` predicts the teacher of a batch that has one from the (B, S, D) encoder frames.
    """
    frames, lengths = model.encoder(batch.features, batch.feature_lengths, conditions.chunk)
    ctc_log = model.ctc(frames).float().log_softmax(-1)
    stops, latest = None, None
    if conditions.synchronous or conditions.delay_limit is not None:
        stops = ctc_stops(ctc_log.detach(), batch.tokens, lengths, batch.token_lengths)
        if conditions.delay_limit is not None:
            latest = F.pad(stops + conditions.delay_limit, (0, 1), value=torch.inf)  # none for the query after the end
    states = model.decoder(batch.tokens)
    memory = model.attention.remember(frames)
    alignment = model.attention.expect(states, memory, lengths, conditions.noise, conditions.discount, latest)
    logits = model.decoder.score(alignment.context[:, :-1], states[:, :-1]).float()

    real = length_mask(batch.token_lengths, batch.tokens.shape[1])
    token = F.cross_entropy(logits[real], batch.tokens[real], label_smoothing=conditions.smoothing, reduction="sum")
    ctc = F.ctc_loss(
        ctc_log.transpose(0, 1), batch.tokens, lengths, batch.token_lengths, reduction="sum", zero_infinity=True
    )
    quantity = quantity_loss(alignment.alpha, batch.token_lengths)
    consistency = consistency_loss(ctc_log, lengths) if conditions.paired else token.new_zeros(())
    teacher = token.new_zeros(())
    if imitate is not None and batch.teacher is not None:
        teacher = teacher_loss(imitate(frames).float(), batch.teacher, lengths)
    synchrony, delay = token.new_zeros(()), token.new_zeros(())
    if stops is not None and conditions.synchronous:
        synchrony, delay = synchrony_loss(alignment.alpha, stops)
    correct = (logits.detach()[real].argmax(-1) == batch.tokens[real]).sum()
    mass = alignment.alpha.detach()[:, :-1][real].sum()
    losses = Losses(token, ctc, quantity, synchrony, consistency, teacher)
    return losses, Diagnosis(correct, mass, delay.detach()), alignment


def text_loss(model: MochaModel, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    """Cross-entropy of the decoder on text that nobody spoke, summed over the batch: its context is zero.

    What the decoder learns of the language need not come out of the few words that were recorded.
    """
    states = model.decoder(tokens)[:, :-1]
    logits = model.decoder.score(states.new_zeros(*states.shape[:2], model.config.encoder.width), states).float()
    real = length_mask(token_lengths, tokens.shape[1])
    return F.cross_entropy(logits[real], tokens[real], reduction="sum")


def consistency_loss(ctc_log: Tensor, lengths: Tensor) -> Tensor:
    """How far CTC differs between two views of the same utterances, the halves of (2B, S, V) log-probabilities.

    Consistency-regularised CTC (Yao et al. 2024, arXiv 2410.05101): the divergence of each view from the other one,
    which is taken as given, summed over frames and both directions. What one view masks, the other one teaches.
    """
    first, second = ctc_log[length_mask(lengths, ctc_log.shape[1])].chunk(2)
    return F.kl_div(first, second.detach(), reduction="sum", log_target=True) + F.kl_div(
        second, first.detach(), reduction="sum", log_target=True
    )


def teacher_loss(predicted: Tensor, teacher: Tensor, lengths: Tensor) -> Tensor:
    """The mean square of the differences between (B, S, K) frames, summed over the frames of all rows.

    Distillation of a larger model's hidden frames (Romero et al. 2015, "FitNets", arXiv 1412.6550): every frame says
    what was heard there, where a transcript says it only of the whole.
    """
    real = length_mask(lengths, predicted.shape[1])
    return F.mse_loss(predicted[real], teacher[real], reduction="sum") / predicted.shape[-1]


def quantity_loss(alpha: Tensor, token_lengths: Tensor) -> Tensor:
    """How far the expected number of stops is from the number of tokens, summed over the batch.

    The walk of each token should stop somewhere, and that of the query after the last token nowhere, so that
    silence costs no decoder step. (B, U + 1, S) alpha holds both.
    """
    mass = alpha.sum(-1)
    at = torch.arange(alpha.shape[1], device=alpha.device)
    missing = ((1 - mass) * (at < token_lengths[:, None])).sum()
    return missing + (mass * (at == token_lengths[:, None])).sum()


def synchrony_loss(alpha: Tensor, stops: Tensor) -> tuple[Tensor, Tensor]:
    """Frames between the expected stop of each token and its last frame in the best CTC path: absolute, and signed.

    CTC-synchronous training (Inaguma and Kawahara 2021, "Alignment knowledge distillation for online streaming
    attention-based speech recognition", arXiv 2103.00422): the expected latency that MinLT (arXiv 2004.05009)
    minimises, with what CTC says in place of an alignment from elsewhere.

    Args:
        alpha: (B, U + 1, S)
        stops: (B, U) from `ctc_stops`; tokens without one are left out
    """
    alpha, known = alpha[:, :-1], stops.isfinite()
    frames = torch.arange(alpha.shape[-1], device=alpha.device)
    # No matrix product, which autocast would take in bfloat16: the difference of two large numbers is small.
    difference = (alpha * (frames - stops.where(known, 0)[..., None])).sum(-1) * known
    return difference.abs().sum(), difference.sum()


def ctc_stops(ctc_log: Tensor, tokens: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """The (B, U) last frames of tokens in the best CTC paths over (B, S, V); infinity where a row has no path, and
    after its last token."""
    stops = torch.full(tokens.shape, torch.inf, device=tokens.device)
    for row, (size, num_tokens) in enumerate(zip(lengths.tolist(), token_lengths.tolist(), strict=True)):
        spans = ctc_spans(ctc_log[row, :size], tokens[row, :num_tokens])
        if spans is not None:
            stops[row, :num_tokens] = spans[:, 1].to(stops.dtype)
    return stops


def ctc_spans(log_probabilities: Tensor, tokens: Tensor) -> Tensor | None:
    """The (U, 2) first and last frame of each of (U,) tokens in the best CTC path over (S, V); None without a path."""
    repeats = int((tokens[1:] == tokens[:-1]).sum())
    if len(tokens) == 0 or len(tokens) + repeats > len(log_probabilities):
        return None
    path, _ = torchaudio.functional.forced_align(log_probabilities[None], tokens[None].int(), blank=0)
    labels = path[0]
    first = (labels != 0) & (labels != F.pad(labels[:-1], (1, 0)))
    last = (labels != 0) & (labels != F.pad(labels[1:], (0, 1)))
    return torch.stack([first.nonzero()[:, 0], last.nonzero()[:, 0]], 1)
