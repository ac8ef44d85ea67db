"""What else `rf bench models` compares rf on torch with: other packages that have the same models, and torch.compile.

None of them is needed: one that is not installed is left out, and the table says so.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rf._errors import UserError
from rf.bench.case import Reference

__all__ = ["PACKAGES", "Package", "Peers", "select_packages"]


@dataclass(frozen=True)
class Package:
    """One of them.

    :param name: in the table, and of the option --peers
    :param modules: what it needs, as in `import`
    :param how: how to get it
    :param models: (size, dropout) -> its side, by the name of a case
    :param about: what to know about its times, such as the version; sets it up
    :param targets: the ratios of times rf / package that the project aims at, by (case, step, size)
    :param by_default: whether it is timed without being asked for
    """

    name: str
    modules: tuple[str, ...]
    how: str
    models: Mapping[str, Callable[[Any, float], Reference]]
    about: Callable[[], str]
    targets: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    by_default: bool = True

    @property
    def installed(self) -> bool:
        """Whether its modules are there."""
        return all(importlib.util.find_spec(module) is not None for module in self.modules)


@dataclass(frozen=True)
class Peers:
    """What was asked for.

    :param packages: those to time
    :param notes: what the table says about each, and about those that are missing, by name
    """

    packages: Sequence[Package] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def select_packages(text: str | None, cases: Iterable[str]) -> Peers:
    """Those to compare with, set up.

    :param text: names, separated by commas; "all", which includes what takes long; "none"; None for all that take no
        time to speak of.
    :param cases: names of the cases; packages that have none of them are left out.

    Raises UserError for an unknown name.
    """
    known = {package.name.lower(): package for package in PACKAGES}
    if text is None:
        wanted = [package for package in PACKAGES if package.by_default]
    elif text in ("all", "none"):
        wanted = list(PACKAGES) if text == "all" else []
    else:
        given = [name.strip().lower() for name in text.split(",")]
        unknown = [name for name in given if name not in known]
        if unknown:
            there = ", ".join(package.name for package in PACKAGES)
            raise UserError(f"--peers {text}: there is no {unknown[0]!r}; there are: {there}, or all, or none")
        wanted = [known[name] for name in dict.fromkeys(given)]
    names = set(cases)
    wanted = [package for package in wanted if names.intersection(package.models)]
    packages = [package for package in wanted if package.installed]
    notes = {
        package.name: package.about() if package.installed else f"not installed; {package.how}" for package in wanted
    }
    return Peers(packages, notes)


def _tensors(*arrays: Any) -> list[Any]:
    """Tensors that share no memory with the arrays; floats of the default dtype, integers as they are."""
    import torch

    return [torch.tensor(a, dtype=None if a.dtype.kind == "i" else torch.get_default_dtype()) for a in arrays]


# -- RETURNN: parameters are named and laid out as in rf, whose names are those of RETURNN


def _returnn(make: Callable[[Any, Any, float], Any]) -> Callable[[Any, float], Reference]:
    """The side of RETURNN; `make` gets its models, size and dropout."""

    def reference(size: Any, dropout: float) -> Reference:
        from rf.bench import _returnn_models

        model = make(_returnn_models, size, dropout)
        return Reference(model.module, dict, model.forward, getattr(model, "loss", None))

    return reference


def _about_returnn() -> str:
    from rf.bench import _returnn_models

    return _returnn_models.set_up()


def _conformer(models: Any, size: Any, dropout: float) -> Any:
    return models.Conformer(
        *_tensors(*size.data()),
        num_layers=size.num_layers,
        ff_dim=size.ff_dim,
        num_heads=size.num_heads,
        kernel_size=size.kernel_size,
        dropout=dropout,
    )


def _decoder_options(size: Any, dropout: float) -> dict[str, Any]:
    return {
        "vocab_dim": size.vocab_dim,
        "num_layers": size.num_layers,
        "ff_dim": size.ff_dim,
        "num_heads": size.num_heads,
        "dropout": dropout,
    }


def _decoder(models: Any, size: Any, dropout: float) -> Any:
    return models.Decoder(*_tensors(*size.data()), **_decoder_options(size, dropout))


def _greedy(models: Any, size: Any, dropout: float) -> Any:
    return models.Greedy(*_tensors(*size.data()[3:]), size.num_steps, **_decoder_options(size, dropout))


def _language_model(models: Any, size: Any, dropout: float) -> Any:
    return models.LanguageModel(
        *_tensors(*size.data()),
        vocab_dim=size.vocab_dim,
        embed_dim=size.embed_dim,
        hidden_dim=size.hidden_dim,
        num_layers=size.num_layers,
        dropout=dropout,
    )


def _cell_loop(models: Any, size: Any, dropout: float) -> Any:
    return models.CellLoop(*_tensors(*size.data()), hidden_dim=size.out_dim)


def _feed_forward(models: Any, size: Any, dropout: float) -> Any:
    return models.FeedForward(*_tensors(*size.data()), ff_dim=size.inner_dim, dropout=dropout)


# -- i6_models


def _i6_conformer(size: Any, dropout: float) -> Reference:
    from rf.bench import _i6_conformer

    x, _, target = _tensors(*size.data())
    model = _i6_conformer.ConformerEncoder(
        num_layers=size.num_layers,
        model_dim=size.model_dim,
        ff_dim=size.ff_dim,
        num_heads=size.num_heads,
        kernel_size=size.kernel_size,
        dropout=dropout,
    )
    return Reference(model, model.from_rf, lambda: model(x), lambda: model.loss(x, target))


def _about_i6_models() -> str:
    return f"{importlib.metadata.version('i6_models')}, without padding, which its convolution would see"


# -- torch.compile


def _compiled_cell_loop(size: Any, dropout: float) -> Reference:
    from rf.bench import _torch_lstm

    x, target = _tensors(*size.data())
    model = _torch_lstm.LstmCellLoop(in_dim=size.in_dim, hidden_dim=size.out_dim, make_cell=_torch_lstm.CompiledCell)
    return Reference(model, _torch_lstm.cell_loop_from_rf, lambda: model(x), lambda: model.loss(x, target))


PACKAGES = (
    Package(
        "RETURNN",
        ("returnn", "tree"),
        "pip install 'rf-eager[peers]'",
        {
            "Conformer encoder": _returnn(_conformer),
            "Conformer encoder, no padding": _returnn(_conformer),
            "Transformer decoder": _returnn(_decoder),
            "Transformer decoder, no dropout": _returnn(_decoder),
            "greedy decoding": _returnn(_greedy),
            "LSTM language model": _returnn(_language_model),
            "LSTM cell loop": _returnn(_cell_loop),
            "feed-forward block": _returnn(_feed_forward),
        },
        _about_returnn,
        {("Conformer encoder", "forward", "tiny"): 0.2, ("Conformer encoder", "train", "tiny"): 0.33},
    ),
    Package(
        "i6_models",
        ("i6_models", "typeguard"),
        "pip install 'rf-eager[peers]'",
        {"Conformer encoder, no padding": _i6_conformer},
        _about_i6_models,
    ),
    Package(
        "torch.compile",
        ("torch",),
        "",
        {"LSTM cell loop": _compiled_cell_loop},
        lambda: "of the cell; the time to compile is not counted",
        by_default=False,
    ),
)
