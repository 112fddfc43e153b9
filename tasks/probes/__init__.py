"""Network measurements: one record per source probe, and what reads them."""
