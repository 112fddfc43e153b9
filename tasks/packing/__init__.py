"""Pack lengths into bins, with the array kernels this needs: pure, shared by pack-sft and the probe-row loader."""
