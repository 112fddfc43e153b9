"""Records of probe rows: encoded, decoded, and kept in ArrayRecord files."""
