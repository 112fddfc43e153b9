"""The run contract, written once for all flows, from identity to history and pruning."""
