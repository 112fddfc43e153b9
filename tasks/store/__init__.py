"""Files: reading inputs with row ids, atomic commits, fingerprints, receipts, the layout of a run."""
