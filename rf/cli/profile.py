"""``rf profile``: show where the time of a training step goes."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import rf
from rf import models
from rf._errors import UserError
from rf._files import write_json
from rf.backend import get_backend, use_backend
from rf.cli._arguments import check_output
from rf.cli._device import check_device
from rf.cli.bench import check_positive
from rf.cli.train import add_data_arguments
from rf.data import Batch, Dataset, Loader, make_loader
from rf.profile.environment import environment, threads
from rf.profile.report import print_profile, profile_json
from rf.profile.step import Step, profile_step
from rf.train import Feed, RunOptions

__all__ = ["add_arguments", "make_step", "run"]

LEARNING_RATE = 1e-6
"""Of the measured steps. They all have the same batch: with more, the model might leave where it trains well."""
CANDIDATES = 9
"""From so many batches, that of median size is taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rf profile``. Those that `RunOptions` has are None when left out."""
    default = RunOptions()
    parser.description = (
        "Take one training step of a model apart: the frontend (the same step on a meta backend), the backend (its "
        "kernel calls without rf, backward pass and optimizer), waiting for data, and the unexplained rest. Without "
        "options: the attention encoder-decoder model on the built-in task."
    )
    parser.add_argument("--model", metavar="NAME", help=f"{', '.join(models.MODELS)} ({default.model})")
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help=f"size of the model: {', '.join(models.preset_names(default.model))} ({default.preset})",
    )
    parser.add_argument("--backend", default="torch", metavar="NAME", help="backend to train on (torch)")
    parser.add_argument("--device", metavar="NAME", help="where to compute: cpu, cuda, cuda:1, ... (cpu)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps to measure (20)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of the backend (1, or as many as it has started with)"
    )
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that load data (0: none)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")
    add_data_arguments(parser)
    parser.add_argument("--batch-size", type=int, metavar="N", help=f"most sequences of a batch ({default.batch_size})")
    parser.add_argument("--seed", type=int, metavar="N", help=f"of parameters and order of the data ({default.seed})")


def run(args: argparse.Namespace) -> int:
    """Prints the split of the step and its tables. Always 0."""
    check_positive("--steps", args.steps)
    check_positive("--threads", 1 if args.threads is None else args.threads)
    if args.workers < 0:
        raise UserError(f"--workers {args.workers}: must be at least 0")
    check_output("--json", args.json)
    backend = get_backend(args.backend)
    if not backend.computes or not backend.has_gradients:
        raise UserError(
            f"--backend {args.backend}: computes no gradients, so it has no training step; use --backend torch"
        )
    check_device(backend, args.device)
    options = RunOptions.make({field.name: getattr(args, field.name, None) for field in fields(RunOptions)})
    dataset = options.open(split="train", seed=options.seed)
    loader = make_loader(
        dataset,
        batch_size=options.batch_size,
        max_frames=options.max_frames,
        seed=options.seed,
        num_workers=args.workers,
    )
    try:
        with rf.set_default_device_ctx(args.device), threads(backend, args.threads):
            batch = typical_batch(loader)
            batches = _endless(loader)
            result = profile_step(
                make_step(backend.name, options, dataset, batch),
                make_step(f"meta:{backend.name}", options, dataset, batch),
                steps=args.steps,
                next_batch=lambda: next(batches),
                alternate=args.workers == 0,
            )
            env = environment(backend)
    finally:
        loader.close()
    subject = _subject(args, options, batch)
    print_profile(result, env, subject)
    if args.json:
        write_json(args.json, profile_json(result, env, subject))
    return 0


def make_step(backend_name: str, options: RunOptions, dataset: Dataset, batch: Batch) -> Step:
    """The step that `rf train` makes of a batch, on some backend, with a new model.

    It goes from the padded NumPy arrays to the updated parameters. The run context is that of the train step then.
    """
    backend = get_backend(backend_name)
    with use_backend(backend_name):
        rf.set_random_seed(options.seed)
        feed = Feed.of(dataset)
        config = models.make_config(options.model, options.preset, dataset, options)
        model = models.create(options.model, config, feed.feature_dim, feed.label_dim)

    def forward() -> rf.Tensor:
        rf.init_train_step_run_ctx(train_flag=True)
        model.train_step(*feed(batch))
        total = rf.get_run_ctx().total_loss()
        assert isinstance(total, rf.Tensor)
        return total

    if not backend.computes:
        return Step(backend, forward, None, model)
    optimizer = options.make_optimizer(model.named_parameters())
    return Step(backend, forward, lambda loss: optimizer.step(loss, learning_rate=LEARNING_RATE), model)


def typical_batch(loader: Loader) -> Batch:
    """One of the first batches, of median size, padding included."""
    batches = sorted(itertools.islice(loader, CANDIDATES), key=lambda batch: batch.inputs.size)
    return batches[len(batches) // 2]


def _endless(loader: Loader) -> Iterator[Batch]:
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield from loader


def _subject(args: argparse.Namespace, options: RunOptions, batch: Batch) -> dict[str, Any]:
    return {
        "model": options.model,
        "preset": options.preset,
        "data": options.data,
        "backend": args.backend,
        "device": args.device or "cpu",
        "batch": len(batch),
        "inputs": list(batch.inputs.shape),
        "targets": list(batch.targets.shape),
        "workers": args.workers,
    }
