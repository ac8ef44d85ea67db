"""Complete models, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from rf import Dim, UserError
from rf.models.aed import ConformerCtcAed, ConformerCtcAedConfig
from rf.models.base import Model

__all__ = [
    "MODELS",
    "ConformerCtcAed",
    "ConformerCtcAedConfig",
    "Model",
    "config_to_json",
    "create",
    "make_config",
    "preset_names",
]

MODELS: dict[str, type[Model]] = {"conformer-ctc-aed": ConformerCtcAed}
"""All models, by the name that the command line uses."""


class DataDescription(Protocol):
    """What a model needs to know of the data: samples per second of audio; None where the inputs are features."""

    @property
    def sampling_rate(self) -> int | None: ...


def _model_class(name: str) -> type[Model]:
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}; choose one of: {', '.join(MODELS)}")
    return MODELS[name]


def preset_names(name: str) -> tuple[str, ...]:
    """The presets of a model. Raises UserError for an unknown model."""
    return tuple(_model_class(name).presets)


def make_config(name: str, preset: str, data: DataDescription, options: Any = None) -> Any:
    """The configuration of a model for some data.

    :param name: key of `MODELS`.
    :param preset: one of `preset_names`.
    :param data: what the model is for.
    :param options: an object or dict; those of its entries that are not None and that the model knows under the same
        name replace those of the preset (`dropout`, `augment`).

    Raises UserError for an unknown model or preset.
    """
    cls = _model_class(name)
    if preset not in cls.presets:
        raise UserError(f"unknown preset {preset!r} of model {name}; choose one of: {', '.join(cls.presets)}")
    config = dataclasses.replace(cls.presets[preset], sampling_rate=data.sampling_rate)
    given = {}
    for name in cls.overridable:
        value = options.get(name) if isinstance(options, Mapping) else getattr(options, name, None)
        if value is not None:
            given[name] = value
    return dataclasses.replace(config, **given)


def create(name: str, config: Any, feature_dim: Dim | None, label_dim: Dim) -> Model:
    """A new model on the selected backend, with newly drawn parameters.

    :param name: key of `MODELS`.
    :param config: of `make_config`, or its JSON form.
    :param feature_dim: of the inputs; None for audio.
    :param label_dim: labels of the targets.

    Raises UserError for an unknown model, and for a configuration that does not fit it.
    """
    cls = _model_class(name)
    if isinstance(config, Mapping):
        try:
            config = cls.config_class(**config)
        except TypeError as exc:
            raise UserError(f"model {name}: the configuration {dict(config)} is not one of this model ({exc})") from exc
    return cls(config, feature_dim=feature_dim, label_dim=label_dim)


def config_to_json(model: Model) -> dict[str, Any]:
    """The configuration of a model as a JSON object, for `create`."""
    return dataclasses.asdict(model.config)
