"""The conformance and masking suites: every op, on every backend, against samples that are one line each."""
