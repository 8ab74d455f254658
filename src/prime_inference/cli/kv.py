"""`prime inference kv` and `prime inference eval kv`: the NVFP4 KV cache.

The commands need the extra `kv`; what imports numpy is imported when a command runs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from prime_inference.cli.failures import CommandFailed, WrongUsage
from prime_inference.cli.options import Command, Group, Plain, TableOrJson, TextOrJson, json_help
from prime_inference.cli.progress import DownloadProgress, Milestones
from prime_inference.cli.terminal import Column, Terminal

if TYPE_CHECKING:
    from prime_inference.kvcache.accuracy.comparison import Cell
    from prime_inference.kvcache.accuracy.rows import RowQuality
    from prime_inference.kvcache.accuracy.selector import SelectorQuality

app = typer.Typer(cls=Group, no_args_is_help=True, help="Prepare checkpoints for NVFP4 KV.")
eval_app = typer.Typer(cls=Group, no_args_is_help=True, help="Measure what a choice costs.")
eval_kv = typer.Typer(cls=Group, no_args_is_help=True, help="Accuracy of the NVFP4 KV cache.")
eval_app.add_typer(eval_kv, name="kv")


class CheckpointUnfit(CommandFailed):
    """The checkpoint cannot be folded, or the target folder cannot be written."""

    code = "checkpoint_unfit"


class EvaluationFailed(CommandFailed):
    """An endpoint did not answer, or the answers on disk belong to another run."""

    code = "evaluation_failed"


class ExtraMissing(CommandFailed):
    """A package of the extra `kv` is not installed."""

    code = "extra_missing"


FOLD_EPILOG = json_help("{layers: {prefix: exponent, ...}, tensors: n, bytes: n, written: bool}")


@app.command("fold-scales", cls=Command, epilog=FOLD_EPILOG)
def fold_scales(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of safetensors shards.")],
    target: Annotated[
        Path | None, typer.Argument(help="New folder for the folded checkpoint.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="An .npz of latents [T, 512] by layer prefix (model.layers.0.self_attn). "
            "Default: the bound that the norm's weights give."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Fold a power of two per layer into a checkpoint, so that NVFP4 rows are accurate.

    The model's function stays the same bit for bit; its KV does not, so a
    folded checkpoint is a revision of its own.

    Examples:
      prime inference kv fold-scales ./glm ./glm-folded
      prime inference kv fold-scales ./glm --dry-run
    """
    if (target is None) != dry_run:
        raise WrongUsage("Give a target folder, or --dry-run without one.")
    terminal = Terminal(plain=plain)
    with _explained(CheckpointUnfit):
        from prime_inference.kvcache.checkpoint import fold, plan_fold

        plan = plan_fold(checkpoint, _exponents(calibration))
        if target is not None:
            done = 0
            # Every byte is written once and verified once.
            with DownloadProgress("folding and verifying", plain=plain) as progress:

                def advance(nbytes: int) -> None:
                    nonlocal done
                    done += nbytes
                    progress(done, 2 * plan.nbytes)

                fold(plan, target, advance)
    if output == "json":
        terminal.json(
            {
                "layers": plan.layers,
                "tensors": len(plan.tensors),
                "bytes": plan.nbytes,
                "written": target is not None,
            }
        )
        return
    for layer, exponent in plan.layers.items():
        terminal.line(f"{layer}  2^{exponent}")
    if target is not None:
        terminal.success(f"{len(plan.tensors)} tensors folded and verified in {target}")


ROWS_EPILOG = json_help(
    "[{tail, max_abs, arm, bytes_per_token, sqnr_db (null: no error), output_error}, ...]"
)


@eval_kv.command("rows", cls=Command, epilog=ROWS_EPILOG)
def rows(
    seed: Annotated[int, typer.Option(help="Seed of the latents.", min=0)] = 0,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Compare cache formats on synthetic latents: SQNR and attention-output error.

    Examples:
      prime inference eval kv rows
      prime inference eval kv rows -o json
    """
    terminal = Terminal(plain=plain)
    with _explained(), terminal.waiting("quantizing and attending"):
        from prime_inference.kvcache.accuracy.rows import evaluate_rows

        results = evaluate_rows(seed)
    if output == "json":
        terminal.json([one.as_json() for one in results])
    else:
        terminal.table("KV rows on synthetic latents", *_rows_table(results))


SELECTOR_EPILOG = json_help(
    "[{max_abs, arm, sqnr_db, questions, accuracy, recall, overlap, kl, lost, low, high,"
    " lost_by_model, verdict}, ...]; overlap: share of the selection that the exact cache selects"
    " too; lost: needles that only BF16 selects, low and high bound it at 95 % confidence"
)


@eval_kv.command("selector", cls=Command, epilog=SELECTOR_EPILOG)
def selector(
    models: Annotated[int, typer.Option(help="Models, each from a seed of its own.", min=1)] = 2,
    seed: Annotated[
        int, typer.Option(help="Seed of the first; the next have the next.", min=0, max=2**32 - 1)
    ] = 0,
    magnitudes: Annotated[
        str, typer.Option(help="Largest latents of a layer, separated by commas.")
    ] = "0.02,0.1,1,5.2",
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Train small sparse-attention models and see whether their selectors survive compression.

    A seed that does not learn is named, and the next takes its place.

    Takes two to three minutes a model on one free core; needs the extra kv-torch.

    Examples:
      prime inference eval kv selector
      prime inference eval kv selector --models 1 --magnitudes 0.02
    """
    terminal = Terminal(plain=plain)
    sizes = _numbers("magnitudes", magnitudes, float)
    if not all(1e-6 <= one <= 1e6 for one in sizes):  # far beyond published ones, in float32
        raise WrongUsage(f"--magnitudes lie from 1e-6 to 1e6, not {magnitudes!r}.")
    with _explained():
        from prime_inference.kvcache.accuracy.selector import evaluate_selector, trained_models

        with terminal.waiting(f"training {models} models"):
            trained = list(trained_models(seed, models, terminal.note))
        with terminal.waiting("asking"):
            results = list(evaluate_selector(trained, seed=seed, magnitudes=sizes))
    if output == "json":
        terminal.json([one.as_json() for one in results])
    else:
        terminal.table("Selectors through compressed rows", *_selector_table(results))


ENDPOINTS_EPILOG = json_help(
    "[{task, tokens (0: all), questions, reference, candidate, low, high, reference_unanswered,"
    " candidate_unanswered}, ...]; low and high bound candidate - reference at 95 % confidence"
)


@eval_kv.command("endpoints", cls=Command, epilog=ENDPOINTS_EPILOG)
def endpoints(
    reference: Annotated[str, typer.Option(help="Base URL of the BF16 or FP8 endpoint.")],
    candidate: Annotated[str, typer.Option(help="Base URL of the NVFP4 endpoint.")],
    model: Annotated[str, typer.Option(help="Model to ask for.")],
    out: Annotated[Path, typer.Option(help="Folder of answers and report; resumes a run.")],
    candidate_model: Annotated[
        str | None, typer.Option(help="Its name at the candidate, if another.")
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Tokens of context, separated by commas.")
    ] = "4096,16384,65536,131072",
    questions: Annotated[int, typer.Option(help="Per task and length.", min=1)] = 16,
    concurrency: Annotated[int, typer.Option(help="At each endpoint.", min=1)] = 4,
    reasoning_tokens: Annotated[
        int, typer.Option(help="Room for a thinking model's thoughts before its answer.", min=0)
    ] = 8192,
    seed: Annotated[int, typer.Option(help="Seed of the questions.", min=0)] = 0,
    reference_key: Annotated[str | None, typer.Option(envvar="PRIME_EVAL_REFERENCE_KEY")] = None,
    candidate_key: Annotated[str | None, typer.Option(envvar="PRIME_EVAL_CANDIDATE_KEY")] = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Ask two endpoints the same long-context questions and compare their scores, paired.

    Examples:
      prime inference eval kv endpoints --reference http://a/v1 --candidate http://b/v1
        --model z-ai/glm-5.3 --out ./kv-run
    """
    import time

    terminal = Terminal(plain=plain)
    sizes = _numbers("lengths", lengths, int)
    milestones = Milestones()

    def progress(done: int, total: int) -> None:
        if milestones.due(done, total, time.monotonic()):
            terminal.note(f"{done} of {total} answers")

    with _explained():
        from prime_inference.kvcache.accuracy.endpoints import Endpoint
        from prime_inference.kvcache.accuracy.paired_run import compare_endpoints

        try:
            cells = compare_endpoints(
                Endpoint("reference", reference, model, reference_key),
                Endpoint("candidate", candidate, candidate_model or model, candidate_key),
                out, seed=seed, lengths=sizes, questions=questions,
                reasoning_tokens=reasoning_tokens, concurrency=concurrency, progress=progress,
            )  # fmt: skip
        except ExceptionGroup as failures:  # an endpoint's, or the disk's
            raise EvaluationFailed(
                str(failures.exceptions[0]), hint="Run it again to go on from here."
            ) from failures
    _print_comparison(cells, terminal, as_json=output == "json")


def _print_comparison(cells: Sequence[Cell], terminal: Terminal, *, as_json: bool) -> None:
    """Raises EvaluationFailed where too few were answered for a verdict."""
    from dataclasses import asdict

    from prime_inference.kvcache.accuracy.comparison import ALL, markdown

    if as_json:
        terminal.json([asdict(cell) for cell in cells])
    else:
        terminal.line(markdown(cells))
    whole = next(one for one in cells if (one.task, one.tokens) == (ALL, 0))
    if not whole.conclusive:
        raise EvaluationFailed(
            f"No verdict: of {whole.questions} answers each, {whole.reference_unanswered} of the "
            f"reference and {whole.candidate_unanswered} of the candidate are empty or cut short.",
            hint="Give a thinking model more --reasoning-tokens, with another --out.",
        )


def _rows_table(results: list[RowQuality]) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("tail"),
        Column("max |latent|", "right"),
        Column("arm"),
        Column("B/token", "right"),
        Column("SQNR dB", "right"),
        Column("output error", "right"),
    ]
    cells = [
        [
            one.tail,
            f"{one.max_abs:g}",
            one.arm,
            str(one.bytes_per_token),
            f"{one.sqnr_db:.1f}",
            f"{one.output_error:.4f}",
        ]
        for one in results
    ]
    return columns, cells


def _selector_table(
    results: list[SelectorQuality],
) -> tuple[list[Column], list[list[str]]]:
    columns = [
        Column("max |latent|", "right"),
        Column("arm"),
        Column("SQNR dB", "right"),
        Column("answers", "right"),
        Column("selection", "right"),
        Column("KL", "right"),
        Column("needles lost, 95 %", "right"),
        Column("verdict"),
    ]
    cells = [
        [
            f"{one.max_abs:g}",
            one.arm,
            f"{one.sqnr_db:.1f}",
            f"{one.accuracy:.3f}",
            f"{one.overlap:.3f}",
            f"{one.kl:.3f}",
            f"{one.lost:.1%} ({one.low:.1%} to {one.high:.1%})",
            one.verdict,
        ]
        for one in results
    ]
    return columns, cells


Number = TypeVar("Number", int, float)


def _numbers(option: str, text: str, kind: type[Number]) -> tuple[Number, ...]:
    """Positive numbers separated by commas. Raises `WrongUsage`."""
    try:
        numbers = tuple(kind(one) for one in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < one < math.inf for one in numbers):
        raise WrongUsage(f"--{option} takes positive numbers separated by commas, not {text!r}.")
    if len(set(numbers)) < len(numbers):
        raise WrongUsage(f"--{option} names a number twice: {text!r}.")
    return numbers


def _exponents(calibration: Path | None) -> dict[str, int] | None:
    if calibration is None:
        return None
    from prime_inference.kvcache.outer_scale import read_calibration

    return read_calibration(calibration)


@contextlib.contextmanager
def _explained(failure: type[CommandFailed] = EvaluationFailed) -> Iterator[None]:
    """Turn what the package raises into `failure`."""
    try:
        from prime_inference.kvcache.errors import KvCacheError

        try:
            yield
        except (KvCacheError, OSError, ValueError) as error:
            raise failure(str(error)) from error
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"{error.name} is not installed.",
            hint="Install the extra: prime-inference[kv], or [kv-torch] for `selector`.",
        ) from error
