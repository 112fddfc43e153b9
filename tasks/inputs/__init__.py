"""Find the users' input files, fingerprint them, cut them into parts, and read them with (file, row) ids."""
