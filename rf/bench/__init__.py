"""Whole models against the same models written by hand in torch.nn, or in Keras: `rf bench models`.

`models` has the cases, `models_rf` those of their rf models that nothing else has, the modules `_torch_*` and
`_keras_*` the hand-written code, which knows nothing of rf, `peer` how that code is trained. `packages` has further
packages to compare with where they are installed; the code for them is in `_returnn_*` and `_i6_conformer`. `check`
makes sure that all sides compute the same numbers; only then `run` times them.
"""
