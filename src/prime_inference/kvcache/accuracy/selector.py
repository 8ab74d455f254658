"""Does the selector still find what it needs when the layer before it reads compressed rows?

The model of selector_model.py is trained without compression, then asked over contexts 256
times its top-k (as 512K tokens are to GLM's 2048). Layers of published checkpoints have latents
of 0.02 to 5.2; a power of two moves the trained model's to such a magnitude without changing
its function, exactly as published norms and projections differ from layer to layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from prime_inference.kvcache.accuracy.arms import ARMS, Arm
from prime_inference.kvcache.accuracy.selector_model import Batch, RecallModel, train

MAGNITUDES: Final = (0.02, 0.1, 1.0, 5.2)
TRAINING_STEPS: Final = 500  # 96 % right at step 100; the second half sees decoys; a minute
PAIRS: Final = 1024  # a context of 2048 positions
TOP_K: Final = 8
QUESTIONS: Final = 32
DECOYS: Final = 24  # three times what fits into the selection
CONTEXTS: Final = 4


@dataclass(frozen=True, slots=True)
class SelectorQuality:
    """One arm at one magnitude, over all questions.

    `accuracy`: answers that are right. `recall`: questions whose needed position was selected.
    `overlap`: share of the selection that the exact cache selects too. `kl`: mean KL divergence
    of the answer from the exact cache's, in nats.
    """

    max_abs: float
    arm: str
    accuracy: float
    recall: float
    overlap: float
    kl: float

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def trained_model(
    seed: int = 0, report: Callable[[int, float, float], None] = lambda *_: None
) -> RecallModel:
    """A model trained from this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RecallModel()
    train(model, torch.Generator().manual_seed(seed + 1), steps=TRAINING_STEPS, report=report)
    model.eval()
    return model


@torch.no_grad()
def evaluate_selector(
    model: RecallModel,
    *,
    seed: int = 0,
    contexts: int = CONTEXTS,
    magnitudes: Sequence[float] = MAGNITUDES,
) -> Iterator[SelectorQuality]:
    """Every arm at every magnitude, on the same contexts."""
    rng = torch.Generator().manual_seed(seed + 2)
    batches = [model.batch(rng, 1, PAIRS, QUESTIONS, DECOYS) for _ in range(contexts)]
    exact = [_ask(model, batch) for batch in batches]
    for max_abs in magnitudes:
        for arm in ARMS:
            keep = partial(keep_at, arm, max_abs)
            kept = [_ask(model, batch, keep=keep) for batch in batches]
            yield _compare(max_abs, arm, batches, exact, kept)


def keep_at(
    arm: Arm, max_abs: float, layer: int, latent: Tensor, rope: Tensor
) -> tuple[Tensor, Tensor]:
    """What the arm gives back for a layer whose latents had the maximum `max_abs`, within a
    factor of two below: only powers of two leave the model's function as it is."""
    down = math.floor(math.log2(max_abs / float(latent.abs().max())))
    kept, kept_rope = arm.keep((latent * 2.0**down).numpy(), rope.numpy())
    return torch.from_numpy(kept) * 2.0**-down, torch.from_numpy(kept_rope)


def _ask(
    model: RecallModel, batch: Batch, **keep: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [Q, VALUES] and selected positions [Q, TOP_K] of one context."""
    logits, _, scores = model(batch, top_k=TOP_K, **keep)
    return logits[0].log_softmax(-1), scores[0].topk(TOP_K, dim=-1).indices


def _compare(
    max_abs: float,
    arm: Arm,
    batches: list[Batch],
    exact: list[tuple[Tensor, Tensor]],
    kept: list[tuple[Tensor, Tensor]],
) -> SelectorQuality:
    right, found, shared, divergence = [], [], [], []
    for batch, (true_log, true_top), (log, top) in zip(batches, exact, kept, strict=True):
        right.append((log.argmax(-1) == batch.answers[0]).float().mean())
        found.append((top == batch.needed[0][:, None]).any(-1).float().mean())
        same = (top[:, :, None] == true_top[:, None, :]).any(-1)
        shared.append(same.float().mean())
        divergence.append((true_log.exp() * (true_log - log)).sum(-1).mean())
    means = [float(torch.stack(values).mean()) for values in (right, found, shared, divergence)]
    return SelectorQuality(max_abs, arm.name, *means)
