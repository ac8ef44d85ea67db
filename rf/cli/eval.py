"""``rf eval``: decode data with a trained model and print its error rates."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from typing import Any

from rf._errors import UserError
from rf._files import write_json
from rf.cli._arguments import check_at_least, check_output, select
from rf.cli.train import add_data_arguments
from rf.data import ErrorRate, make_loader
from rf.train import AED, CTC, DataOptions, Decoding, SavedRun, decode, evaluate, load_run

__all__ = ["add_arguments", "run"]

_LABELS = {CTC: "greedy CTC", AED: "beam search AED"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rf eval``."""
    parser.add_argument("--checkpoint", metavar="DIR", required=True, help="--out of a training, or the file in it")
    parser.add_argument("--beam", type=int, default=8, metavar="N", help="hypotheses of the beam search (8)")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="most sequences of a batch (16)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print what was recognized in N sequences (0)")
    parser.add_argument("--backend", metavar="NAME", help="backend to compute on (torch if there is one)")
    parser.add_argument("--device", metavar="NAME", help="where to compute: cpu, cuda, ... (cpu)")
    add_data_arguments(parser)
    parser.description = (
        "Decode data with a trained model and print its character error rates. Without --data, the data that the model "
        "was trained on, or, for the built-in task, other sequences of it."
    )


def run(args: argparse.Namespace) -> int:
    """Prints the error rates, in per cent."""
    check_at_least(args, beam=1, batch_size=1, show=0)
    check_output("--json", args.json)
    select(args.backend, args.device)
    saved = load_run(args.checkpoint)
    options = _data_options(args, saved)
    data = options.open(split="eval", seed=saved.options.seed, vocab=saved.vocab, sampling_rate=saved.sampling_rate)
    if (data.feature_dim, data.sampling_rate) != (saved.feature_dim, saved.sampling_rate):
        raise UserError(
            f"--data {options.data}: not of the kind that {saved.path} was trained on, which is {saved.options.data}"
        )
    model, feed = saved.make_model()
    for notice in data.notices:
        print(f"note: {notice}", flush=True)
    loader = make_loader(data, batch_size=args.batch_size, shuffle=False)
    decodings: list[Decoding] = list(decode(model, feed, data, loader, beam_size=args.beam))
    rates = evaluate(decodings)
    for decoding in decodings[: args.show]:
        print(f"{decoding.name}\n  {'reference':<16} {decoding.reference}")
        for how, text in decoding.hypotheses.items():
            print(f"  {_LABELS[how]:<16} {text}")
    print(f"{saved.path}, step {saved.step}: {rates[CTC].num_sequences} sequences, {rates[CTC].num_labels} characters")
    for how, rate in rates.items():
        beam = f", beam {args.beam}" if how == AED else ""
        print(f"CER {_LABELS[how]:<16} {rate.percent:7.2f} %  ({rate.num_errors} errors{beam})")
    if args.json:
        write_json(args.json, _as_json(args, saved, options, rates))
    return 0


def _data_options(args: argparse.Namespace, saved: SavedRun) -> DataOptions:
    given = {field.name: getattr(args, field.name) for field in fields(DataOptions)}
    if args.data is None:
        # The data of the run, or a selection of it.
        given = {name: getattr(saved.options, name) if value is None else value for name, value in given.items()}
    return DataOptions(**{name: value for name, value in given.items() if value is not None})


def _as_json(
    args: argparse.Namespace, saved: SavedRun, options: DataOptions, rates: dict[str, ErrorRate]
) -> dict[str, Any]:
    return {
        "checkpoint": str(saved.path),
        "step": saved.step,
        "data": options.data,
        "num_sequences": rates[CTC].num_sequences,
        "num_characters": rates[CTC].num_labels,
        "beam_size": args.beam,
        # JSON has no infinity, which stands for errors where there is nothing to recognize.
        "cer_percent": {how: rate.percent if math.isfinite(rate.percent) else None for how, rate in rates.items()},
        "num_errors": {how: rate.num_errors for how, rate in rates.items()},
    }
