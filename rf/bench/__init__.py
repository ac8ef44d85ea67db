"""Whole models against the same models written by hand in torch.nn, or in Keras: `rf bench models`.

`models` has the cases, `models_rf` those of their rf models that nothing else has, the modules `_torch_*` and
`_keras_*` the hand-written code, which knows nothing of rf, `peer` how that code is trained. `check` makes sure that
both sides compute the same numbers; only then `run` times them.
"""
