"""Does the selector still find what it needs when the layers before it read compressed rows?

Models of selector_model.py are trained with no other loss than noise of 20 dB, then asked over
contexts 64 times their top-k (as 131,072 tokens are to GLM's 2048), in which every needle on a
chain has seven lookalikes. Layers of published checkpoints have latents of 0.02 to 5.2 at
most, in channels of unequal size; powers of two give a trained model such latents without
changing its function, as published norms and projections differ from layer to layer.

An arm passes where it loses at most `LOSS_BOUND` of the needles that the BF16 arm selects, with
95 % confidence, and fails where it loses more with the same confidence. Difficulty and bound
were set with the arms `bf16` and `noise 20 dB`; NVFP4 rows had been seen on earlier designs.

The models lean on little of a row: a row without its rope key passes, and so does one whose
first block of channels is lost. What shows is an error in all of the latent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from prime_inference.kvcache.accuracy.arms import ARMS, Arm
from prime_inference.kvcache.accuracy.rows import channel_sizes, sqnr_db
from prime_inference.kvcache.accuracy.selector_model import (
    LAYERS,
    Batch,
    Keep,
    RecallModel,
    Report,
    TrainingFailed,
    keep_exactly,
    train,
)
from prime_inference.kvcache.minifloat import Floats

MAGNITUDES: Final = (0.02, 0.1, 1.0, 5.2)
CONTEXT_PAIRS: Final = 256
QUESTIONS: Final = 16  # in a context
DECOYS: Final = 7  # chains, lookalikes included, then fill a context
CONTEXTS: Final = 20  # a model; 320 questions
# A row of exactly 20 dB, which is what is asked of ours, loses 1.6 % here (0.7 to 3.7 %, the
# model of seed 0): the bound lies above that, so that such a row passes.
LOSS_BOUND: Final = 0.05
SPARE_SEEDS: Final = 5  # of six seeds one did not learn
Z95: Final = 1.96  # standard deviations to either side of a two-sided 95 % interval

Verdict = Literal["passes", "fails", "open"]


def _noise(latent: Floats, rope: Floats, *, db: float) -> tuple[Floats, Floats]:
    size = math.sqrt(float(np.mean(np.square(latent, dtype=np.float64)))) * 10 ** (-db / 20)
    noise = np.random.default_rng(len(latent)).standard_normal(latent.shape)
    return (latent + size * noise).astype(np.float32), rope


# What a row of exactly this quality costs, whatever its format.
CONTROL: Final = Arm("noise 20 dB", 0, partial(_noise, db=20.0))


@dataclass(frozen=True, slots=True)
class SelectorQuality:
    """One arm at one magnitude, over the questions to all models.

    `sqnr_db`: the lowest of any model and layer. `accuracy`: answers that are right. `recall`:
    questions whose needle was selected. `overlap`: share of the selection that the exact cache
    selects too. `kl`: mean KL divergence of the answer from the exact cache's, in nats. `lost`:
    of the needles that BF16 selects, the share that this arm does not; `low` and `high` bound
    it at 95 %, and `lost_by_model` says how models scatter.
    """

    max_abs: float
    arm: str
    sqnr_db: float
    questions: int
    accuracy: float
    recall: float
    overlap: float
    kl: float
    lost: float
    low: float
    high: float
    lost_by_model: tuple[float, ...]

    @property
    def verdict(self) -> Verdict:
        if self.high <= LOSS_BOUND:
            return "passes"
        return "fails" if self.low > LOSS_BOUND else "open"

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"verdict": self.verdict}


def trained_model(seed: int = 0, report: Report = lambda *_: None) -> RecallModel:
    """A model trained from this seed, in two to three minutes on one core."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RecallModel()
    train(model, torch.Generator().manual_seed(seed + 1), report)
    model.eval()
    return model


def trained_models(
    seed: int, count: int, left_out: Callable[[str], None] = lambda _: None
) -> Iterator[RecallModel]:
    """`count` models from this seed and those after it. One that does not learn is left out and
    told to `left_out`; raises `TrainingFailed` where that happens more than `SPARE_SEEDS` times.
    """
    trained = failed = 0
    while trained < count:
        number = seed + trained + failed
        try:
            yield trained_model(number)
        except TrainingFailed as error:
            failed += 1
            if failed > SPARE_SEEDS:
                raise
            left_out(f"seed {number} is left out: {error}")
        else:
            trained += 1


@torch.no_grad()
def evaluate_selector(
    models: Sequence[RecallModel],
    *,
    seed: int = 0,
    contexts: int = CONTEXTS,
    magnitudes: Sequence[float] = MAGNITUDES,
) -> Iterator[SelectorQuality]:
    """Every arm at every magnitude, on the same contexts."""
    batches = []
    for number, model in enumerate(models):
        rng = torch.Generator().manual_seed(seed + number + 2)
        batches.append(
            [model.batch(rng, 1, CONTEXT_PAIRS, QUESTIONS, DECOYS) for _ in range(contexts)]
        )
    exact = [_ask(*one, keep_exactly) for one in zip(models, batches, strict=True)]
    for max_abs in magnitudes:
        bf16: list[_Asked] = []
        for arm in (*ARMS, CONTROL):
            caches = [Cache(arm, max_abs, seed + number) for number in range(len(models))]
            asked = [_ask(*one) for one in zip(models, batches, caches, strict=True)]
            bf16 = bf16 or asked  # the first arm
            worst_db = min(one.worst_db for one in caches)
            yield _compare(max_abs, arm, worst_db, exact, bf16, asked)


class Cache:
    """What one arm keeps of a model whose layers have channels as unequal as `channel_sizes`
    says, and a largest latent within a factor of two below `max_abs`: only powers of two leave
    the model's function as it is. `worst_db` is the lowest SQNR of a layer."""

    def __init__(self, arm: Arm, max_abs: float, seed: int) -> None:
        self.arm, self.max_abs, self.worst_db = arm, max_abs, math.inf
        rng = np.random.default_rng(seed)
        self.sizes = [torch.from_numpy(channel_sizes(rng)).float() for _ in range(LAYERS)]

    def __call__(self, layer: int, latent: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        factor = _power_of_two(self.sizes[layer] / latent.square().mean(dim=0).sqrt())
        factor *= _power_of_two(self.max_abs / (latent * factor).abs().max())
        stored = (latent * factor).numpy()
        kept, kept_rope = self.arm.keep(stored, rope.numpy())
        self.worst_db = min(self.worst_db, sqnr_db(stored, kept))
        return torch.from_numpy(kept) / factor, torch.from_numpy(kept_rope)


def _power_of_two(value: Tensor) -> Tensor:
    return torch.exp2(torch.floor(torch.log2(value)))


def wilson(lost: int, of: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson 1927), which is not empty where none is lost."""
    square = Z95 * Z95
    middle = (lost + square / 2) / (of + square)
    half = Z95 / (of + square) * math.sqrt(lost * (of - lost) / of + square / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one model made of its N questions: log-probabilities [N, VALUES], the selection
    [N, TOP_K], and which needles were `found` and answers `right` [N]."""

    log: Tensor
    selected: Tensor
    found: Tensor
    right: Tensor


def _ask(model: RecallModel, batches: Sequence[Batch], keep: Keep) -> _Asked:
    parts = []
    for batch in batches:
        last = model(batch, keep=keep)[-1]
        found = (last.chosen == batch.needed[-1][:, :, None]).any(-1)
        right = last.logits.argmax(-1) == batch.answers[-1]
        parts.append((last.logits.log_softmax(-1)[0], last.chosen[0], found[0], right[0]))
    return _Asked(*(torch.cat(one) for one in zip(*parts, strict=True)))


def _compare(
    max_abs: float,
    arm: Arm,
    worst_db: float,
    exact: Sequence[_Asked],
    bf16: Sequence[_Asked],
    asked: Sequence[_Asked],
) -> SelectorQuality:
    both = list(zip(exact, asked, strict=True))
    same = [(b.selected[:, :, None] == a.selected[:, None]).any(-1) for a, b in both]
    divergence = [(a.log.exp() * (a.log - b.log)).sum(-1) for a, b in both]
    held = [int(one.found.sum()) for one in bf16]
    lost = [int((a.found & ~b.found).sum()) for a, b in zip(bf16, asked, strict=True)]
    low, high = wilson(sum(lost), sum(held))
    return SelectorQuality(
        max_abs,
        arm.name,
        worst_db,
        sum(len(one.found) for one in asked),
        _mean([one.right for one in asked]),
        _mean([one.found for one in asked]),
        _mean(same),
        _mean(divergence),
        sum(lost) / sum(held),
        low,
        high,
        tuple(a / b for a, b in zip(lost, held, strict=True)),
    )


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat([one.flatten().double() for one in parts]).mean())
