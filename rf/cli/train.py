"""``rf train``: train a model, or continue a training."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from rf import models
from rf._errors import UserError
from rf.cli._arguments import check_at_least, select
from rf.cli._interrupt import StopRequest
from rf.cli._progress import Meter, TrainProgress
from rf.data import make_loader
from rf.train import (
    CHECKPOINT,
    CTC,
    OPTIMIZERS,
    SCHEDULES,
    Run,
    RunOptions,
    StepReport,
    decode,
    evaluate,
    load_run,
)

__all__ = ["add_arguments", "add_data_arguments", "run"]

_REPORT_SECONDS = 5.0


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which data; all are None when left out."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", metavar="DATA", help="'numbers', the built-in task, or a directory of wav files")
    group.add_argument("--transcripts", metavar="FILE", help="texts of a directory: lines 'name: text', or a .tsv")
    group.add_argument("--max-seconds", type=float, metavar="S", help="leave out longer audio")
    group.add_argument("--max-sequences", type=int, metavar="N", help="take only the first N sequences")
    group.add_argument("--sampling-rate", type=int, metavar="HZ", help="resample all audio to this")
    group.add_argument(
        "--skip-unmatched",
        action="store_const",
        const=True,
        help="leave out wavs without transcript and transcripts without wav, instead of stopping",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rf train``. Those of the run are None when left out, as a resumed run has its own."""
    default = RunOptions()
    parser.add_argument("--out", metavar="DIR", required=True, help="directory for the checkpoint")
    parser.add_argument(
        "--steps", type=int, metavar="N", default=1000, help="train up to step N, counted from the start (1000)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in --out, exactly as it would have gone on"
    )
    parser.add_argument("--backend", default=None, metavar="NAME", help="backend to train on (torch)")
    parser.add_argument("--device", metavar="NAME", help="where to compute: cpu, cuda, cuda:1, ... (cpu)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes that load data (0: none)")
    parser.add_argument("--save-every", type=int, default=500, metavar="N", help="steps between checkpoints (500)")
    parser.add_argument(
        "--eval-every", type=int, default=0, metavar="N", help="steps between evaluations by greedy CTC (0: none)"
    )
    add_data_arguments(parser)
    group = parser.add_argument_group("model")
    group.add_argument("--model", metavar="NAME", help=f"{', '.join(models.MODELS)} ({default.model})")
    group.add_argument(
        "--preset",
        metavar="NAME",
        help=f"size of the model: {', '.join(models.preset_names(default.model))} ({default.preset})",
    )
    group.add_argument("--dropout", type=float, metavar="P", help="probability of dropout, instead of the preset's")
    group.add_argument(
        "--no-augment", dest="augment", action="store_const", const=False, help="train without SpecAugment"
    )
    group = parser.add_argument_group("training")
    group.add_argument(
        "--seed", type=int, metavar="N", help=f"of parameters, dropout and order of the data ({default.seed})"
    )
    group.add_argument("--batch-size", type=int, metavar="N", help=f"most sequences of a batch ({default.batch_size})")
    group.add_argument(
        "--max-frames", type=int, metavar="N", help="most frames, or samples of audio, of a batch, padding included"
    )
    group.add_argument("--lr", type=float, metavar="RATE", help=f"highest learning rate ({default.lr:g})")
    group.add_argument("--warmup", type=int, metavar="N", help=f"steps until it is reached ({default.warmup})")
    group.add_argument(
        "--schedule",
        metavar="NAME",
        help=f"what follows: {', '.join(SCHEDULES)} ({default.schedule}); the latter two reach 0 at --decay-steps",
    )
    group.add_argument("--decay-steps", type=int, metavar="N", help="step, counted from the start, of the end of these")
    group.add_argument(
        "--no-lr-decay", dest="schedule", action="store_const", const="constant", help="the same as --schedule constant"
    )
    group.add_argument("--optimizer", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} ({default.optimizer})")
    group.add_argument("--momentum", type=float, metavar="M", help=f"of sgd ({default.momentum:g})")
    group.add_argument(
        "--weight-decay", type=float, metavar="W", help=f"of weights, decoupled in adamw ({default.weight_decay:g})"
    )
    group.add_argument(
        "--max-gradient-norm",
        type=float,
        metavar="X",
        help=f"clip gradients to this norm, 0: never ({default.max_gradient_norm:g})",
    )


def run(args: argparse.Namespace) -> int:
    """Trains. 0 when the last step is done; 130 after ctrl-C (128 + the signal), with a checkpoint saved."""
    check_at_least(args, steps=1, save_every=1, eval_every=0, workers=0)
    out = Path(args.out)
    if not args.resume and (out / CHECKPOINT).exists():
        raise UserError(
            f"{out / CHECKPOINT}: there is a checkpoint already; continue it with --resume, or choose another --out"
        )
    select(args.backend, args.device)
    given = {field.name: getattr(args, field.name) for field in fields(RunOptions)}
    if args.resume:
        if not (out / CHECKPOINT).exists():
            raise UserError(
                f"{out / CHECKPOINT}: no such file, there is nothing to resume; leave out --resume to start"
            )
        training = Run.resume(load_run(out), given, num_workers=args.workers)
    else:
        training = Run.start(RunOptions.make(given), num_workers=args.workers)
        _make_directory(out)
    try:
        return _train(training, out, args)
    finally:
        training.close()


def _train(training: Run, out: Path, args: argparse.Namespace) -> int:
    for notice in training.dataset.notices:
        print(f"note: {notice}", flush=True)
    num_parameters = sum(int(p.numpy().size) for p in training.model.parameters() if p.trainable)
    print(
        f"{training.options.model} ({training.options.preset}): {num_parameters} parameters; "
        f"{len(training.dataset)} sequences, {len(training.dataset.vocab)} labels; "
        f"step {training.step} of {args.steps}",
        flush=True,
    )
    if training.step >= args.steps:
        print(f"the run has {training.step} steps already: nothing to do; give more --steps to continue")
        return 0
    meter = Meter()
    with StopRequest() as stop, TrainProgress(args.steps, training.step) as progress:
        for step in training.steps(args.steps):
            meter.add(step.losses, step.errors, step.wait_seconds)
            progress.update(step.step, step.epoch, step.losses["total"])
            last = step.step == args.steps or stop.signal is not None
            if last or step.step == 1 or meter.seconds >= _REPORT_SECONDS:
                progress.report(_line(training, step, meter, args.steps))
                meter.reset()
            if args.eval_every and step.step % args.eval_every == 0:
                progress.report(_evaluation(training))
                meter.reset()
            if last or step.step % args.save_every == 0:
                path = training.save(out)
            if last:
                break
        if stop.signal is None:
            progress.report(f"saved {path}")
            return 0
        progress.report(f"stopped after step {training.step}, saved {path}; continue with --resume")
        return stop.exit_status


def _line(training: Run, step: StepReport, meter: Meter, num_steps: int) -> str:
    rates = evaluate(decode(training.model, training.feed, training.dataset, [step.batch], beam_size=None))
    return (
        f"step {step.step}/{num_steps}  epoch {step.epoch}  {meter.text()}  "
        f"CER of the batch {rates[CTC].percent:.1f} %  lr {step.learning_rate:.2g}"
    )


def _evaluation(training: Run) -> str:
    options = training.options
    data = options.open(
        split="eval", seed=options.seed, vocab=training.dataset.vocab, sampling_rate=training.dataset.sampling_rate
    )
    loader = make_loader(data, batch_size=options.batch_size, max_frames=options.max_frames, shuffle=False)
    rates = evaluate(decode(training.model, training.feed, data, loader, beam_size=None))
    return f"step {training.step}  evaluation: CER greedy CTC {rates[CTC].percent:.2f} % of {len(data)} sequences"


def _make_directory(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UserError(f"--out {out}: cannot be made ({exc.strerror or exc}); choose another directory") from exc
