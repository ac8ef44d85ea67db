"""Optimizers and learning rates: what changes the parameters after the gradients are known.

An optimizer differentiates a loss and updates the parameters; a schedule gives the learning rate of a step. Both are
the same on every backend that has gradients, and so is the state of an optimizer, NumPy arrays by parameter name: what
was trained on one backend continues on another. A loop of one's own::

    >>> import rf
    >>> from rf.optim import Cosine, Warmup, adamw
    >>> rf.set_random_seed(1)
    >>> batch_dim, frame_dim = rf.Dim(3, name="batch"), rf.Dim(None, name="frame")
    >>> feature_dim, label_dim = rf.Dim(6, name="feature"), rf.Dim(3, name="label")
    >>> frame_dim = frame_dim.fill([7, 4, 5], [batch_dim])
    >>> frames = rf.random_normal([batch_dim, frame_dim, feature_dim])
    >>> labels = rf.reduce_argmax(frames, axis=feature_dim) // 2
    >>> labels.sparse_dim = label_dim
    >>> model = rf.Linear(feature_dim, label_dim)
    >>> optimizer = adamw(model.named_parameters(), weight_decay=0.01, max_gradient_norm=5.0)
    >>> learning_rate = Warmup(10, Cosine(0.1, 90))
    >>> losses = []
    >>> for step in range(100):
    ...     rf.init_train_step_run_ctx(step=step)  # from here on, what gradients need is recorded
    ...     loss = rf.cross_entropy(
    ...         estimated=model(frames), target=labels, axis=label_dim, estimated_type="logits"
    ...     )
    ...     loss = rf.reduce_mean(loss, axis=loss.dims)
    ...     norm = optimizer.step(loss, learning_rate=learning_rate(step))
    ...     losses.append(float(loss))
    >>> rf.reset_run_ctx()
    >>> losses[-1] < 0.8 * losses[0]
    True

To keep a training, save the parameters (:mod:`rf.checkpoint`), :meth:`Optimizer.state` and the number of the step:
schedules have no state.
"""

from __future__ import annotations

from rf.optim.factory import adam, adamw, sgd
from rf.optim.optimizer import Optimizer
from rf.optim.schedule import (
    Constant,
    Cosine,
    Exponential,
    InverseSquareRoot,
    MultiStep,
    PiecewiseLinear,
    Schedule,
    Warmup,
    warmup_learning_rate,
)

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "InverseSquareRoot",
    "MultiStep",
    "Optimizer",
    "PiecewiseLinear",
    "Schedule",
    "Warmup",
    "adam",
    "adamw",
    "sgd",
    "warmup_learning_rate",
]
