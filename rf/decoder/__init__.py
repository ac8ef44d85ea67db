"""Decoders. Import their modules explicitly, such as `rf.decoder.transformer`."""
