"""What users bring: found, fingerprinted, cut into parts, and read with (file, row) ids."""
