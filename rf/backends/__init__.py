"""One module per array library; each has `create() -> Backend`. Loaded by name through `rf.backend.get_backend`."""
