"""Encoders. Import their modules explicitly, such as `rf.encoder.conformer`."""
