"""Where the time of a step goes: recording by substitution, decomposition of a step, timing of single ops, reports."""
