"""A two-layer sparse-attention model small enough to train on the spot: associative recall.

A context is a list of pairs, each a key position (a random vector) and a value position (one
of `VALUES` classes); the questions at the end each repeat one key and must be answered with
its value. The first layer attends to the position before and tells a value position which
key stands before it. The second layer attends only to the top-k positions of its indexer,
which reads the hidden state that the first layer's quantized attention made: an error in the
rows of layer one moves the selection of layer two, which is how long contexts break. Keys are
fresh random vectors at every step, so nothing is memorised and any context length is fair.

The attention is MLA as served: a latent of 512 after RMSNorm, a shared rope key of 64, values
and keys from one projection. The indexer is DeepSeek V3.2's: ReLU of query-key products,
weighted per head, its keys in FP8 with one scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS

WIDTH: Final = 128
HEADS: Final = 4
HEAD_DIMS: Final = 32  # of a head's nope key and of its value
KEY_DIMS: Final = 32  # of a key's random vector
VALUES: Final = 16
INDEX_HEADS: Final = 4
INDEX_DIMS: Final = 32
WINDOW: Final = 2  # positions that the first layer sees: its own and the one before
ROLES: Final = 3  # key, value, question
LIKENESS: Final = 0.8  # correlation of a decoy's key with the asked key
WARM_STEPS: Final = 60  # with 20 the same seeds settle on one selection for every question

Keep = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(layer, latent [T, 512], rope [T, 64]) -> what a reader of the cache gets back."""


def keep_exactly(layer: int, latent: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
    """A cache without loss."""
    return latent, rope


@dataclass(frozen=True, slots=True)
class Batch:
    """`hidden` [B, T, WIDTH] inputs; questions are the last positions; `answers` [B, Q] are
    classes and `needed` [B, Q] the value positions that hold them."""

    hidden: Tensor
    answers: Tensor
    needed: Tensor


class Attention(nn.Module):
    """MLA over masked positions, in the naive form (equal to the absorbed one)."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.norm = nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, HEADS * (HEAD_DIMS + ROPE_DIMS), bias=False)
        self.compress = nn.Linear(WIDTH, LATENT_DIMS + ROPE_DIMS, bias=False)
        self.latent_norm = nn.RMSNorm(LATENT_DIMS)
        self.expand = nn.Linear(LATENT_DIMS, HEADS * 2 * HEAD_DIMS, bias=False)
        self.output = nn.Linear(HEADS * HEAD_DIMS, WIDTH, bias=False)

    def forward(self, hidden: Tensor, mask: Tensor, keep: Keep) -> tuple[Tensor, Tensor]:
        """The layer's contribution [B, T, WIDTH] and its attention [B, H, T, T]."""
        x = self.norm(hidden)
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, HEADS, HEAD_DIMS + ROPE_DIMS)
        raw = self.compress(x)
        latent, rope = self.latent_norm(raw[..., :LATENT_DIMS]), raw[..., LATENT_DIMS:]
        rope = rotate(rope, torch.arange(length))
        kept = [keep(self.layer, one, r) for one, r in zip(latent, rope, strict=True)]
        latent, rope = torch.stack([k[0] for k in kept]), torch.stack([k[1] for k in kept])
        expanded = self.expand(latent).view(batch, length, HEADS, 2 * HEAD_DIMS)
        query_rope = rotate(query[..., HEAD_DIMS:].transpose(1, 2), torch.arange(length))
        scores = torch.einsum("bthd,bshd->bhts", query[..., :HEAD_DIMS], expanded[..., :HEAD_DIMS])
        scores = scores + torch.einsum("bhtr,bsr->bhts", query_rope, rope)
        scores = scores * (HEAD_DIMS + ROPE_DIMS) ** -0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        mixed = torch.einsum("bhts,bshd->bthd", weights, expanded[..., HEAD_DIMS:])
        return self.output(mixed.reshape(batch, length, -1)), weights


class Indexer(nn.Module):
    """Which positions a question may attend to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, INDEX_HEADS * INDEX_DIMS, bias=False)
        self.key = nn.Linear(WIDTH, INDEX_DIMS, bias=False)
        self.weight = nn.Linear(WIDTH, INDEX_HEADS, bias=False)

    def forward(self, questions: Tensor, context: Tensor, *, fp8: bool = False) -> Tensor:
        """Scores [B, Q, T] of `context` [B, T, WIDTH] for `questions` [B, Q, WIDTH]."""
        q = self.query(self.norm(questions)).unflatten(-1, (INDEX_HEADS, INDEX_DIMS))
        k = self.key(self.norm(context))
        if fp8:
            scale = k.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / 448
            k = (k / scale).to(torch.float8_e4m3fn).float() * scale
        products = torch.relu(torch.einsum("bqhd,btd->bqht", q, k))
        return torch.einsum("bqh,bqht->bqt", self.weight(self.norm(questions)), products)


class RecallModel(nn.Module):
    """Two layers of attention, the second behind the indexer, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.roles = nn.Embedding(ROLES, WIDTH)
        self.values = nn.Embedding(VALUES, WIDTH)
        self.keys = nn.Linear(KEY_DIMS, WIDTH, bias=False)
        self.first, self.second = Attention(0), Attention(1)
        self.indexer = Indexer()
        self.head = nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VALUES, bias=False))

    def batch(
        self, rng: torch.Generator, size: int, pairs: int, questions: int, decoys: int = 0
    ) -> Batch:
        """Fresh keys, values and questions; T = 2 * pairs + questions.

        Each asked key has `decoys` others in the context that resemble it by `LIKENESS`.
        """
        keys = torch.randn(size, pairs, KEY_DIMS, generator=rng)
        values = torch.randint(VALUES, (size, pairs), generator=rng)
        order = torch.stack([torch.randperm(pairs, generator=rng) for _ in range(size)])
        asked = order[:, :questions]
        if decoys:
            copies = order[:, questions : questions * (1 + decoys)]
            model = asked.repeat_interleave(decoys, dim=1)[:, :, None].expand(-1, -1, KEY_DIMS)
            noise = torch.randn(*copies.shape, KEY_DIMS, generator=rng)
            alike = LIKENESS * torch.gather(keys, 1, model) + (1 - LIKENESS**2) ** 0.5 * noise
            keys = keys.scatter(1, copies[:, :, None].expand(-1, -1, KEY_DIMS), alike)
        key_rows = self.keys(keys) + self.roles.weight[0]
        value_rows = self.values(values) + self.roles.weight[1]
        context = torch.stack([key_rows, value_rows], dim=2).flatten(1, 2)
        again = torch.gather(keys, 1, asked[:, :, None].expand(-1, -1, KEY_DIMS))
        question_rows = self.keys(again) + self.roles.weight[2]
        hidden = torch.cat([context, question_rows], dim=1)
        return Batch(hidden, torch.gather(values, 1, asked), 2 * asked + 1)

    def forward(
        self, batch: Batch, *, top_k: int | None = None, keep: Keep = keep_exactly
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [B, Q, VALUES], the second layer's attention of the questions [B, Q, T]
        (mean of the heads) and the indexer's scores [B, Q, C] over the context.

        `top_k` None attends to the whole context (training).
        """
        questions = batch.answers.shape[1]
        length = batch.hidden.shape[1]
        context = length - questions
        added, _ = self.first(batch.hidden, window_mask(length), keep)
        hidden = batch.hidden + added
        scores = self.indexer(
            hidden[:, context:].detach(), hidden[:, :context].detach(), fp8=top_k is not None
        )
        mask = torch.zeros(len(hidden), 1, length, length, dtype=torch.bool)
        mask[:, :, torch.arange(length), torch.arange(length)] = True
        if top_k is None:
            mask[:, :, context:, :context] = True
        else:
            chosen = scores.topk(top_k, dim=-1).indices
            allowed = torch.zeros(len(hidden), questions, context, dtype=torch.bool)
            mask[:, 0, context:, :context] = allowed.scatter(2, chosen, True)
        added, weights = self.second(hidden, mask, keep)
        logits = self.head((hidden + added)[:, context:])
        return logits, weights[:, :, context:, :context].mean(dim=1), scores


def window_mask(length: int) -> Tensor:
    """[T, T]: the last `WINDOW` positions, one's own included."""
    at = torch.arange(length)
    back = at[:, None] - at[None, :]
    return (back >= 0) & (back < WINDOW)


def rotate(values: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of [..., T, 64], interleaved pairs, base 10000."""
    frequency = 10000.0 ** (-torch.arange(0, ROPE_DIMS, 2, dtype=torch.float64) / ROPE_DIMS)
    angle = positions[:, None] * frequency
    cos, sin = angle.cos().to(values.dtype), angle.sin().to(values.dtype)
    even, odd = values[..., 0::2], values[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2)


def train(
    model: RecallModel,
    rng: torch.Generator,
    *,
    steps: int,
    report: Callable[[int, float, float], None] = lambda *_: None,
) -> None:
    """Answer questions with dense attention while the indexer learns to imitate it.

    `report` gets (step, accuracy, share of questions whose needed position is in the top 8).
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_STEPS, 1.05 - step / steps)
    )
    for step in range(steps):
        # Short contexts first: there the answer is found in a hundred steps. Then longer ones
        # with decoys, which sharpen selection and attention.
        size, pairs, decoys = (16, 16, 0) if step < steps // 2 else (4, 128, 7)
        batch = model.batch(rng, size, pairs, 16, decoys)
        logits, weights, scores = model(batch)
        answer_loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.answers.flatten())
        target = weights.detach()
        target = target / target.sum(dim=-1, keepdim=True).clamp(min=1e-9)
        index_loss = (
            nn.functional.kl_div(scores.log_softmax(dim=-1), target, reduction="batchmean")
            / target.shape[1]
        )
        optimizer.zero_grad()
        (answer_loss + index_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        right = (logits.argmax(-1) == batch.answers).float().mean()
        top = scores.topk(8, dim=-1).indices
        found = (top == batch.needed[:, :, None]).any(-1).float().mean()
        report(step, float(right), float(found))
