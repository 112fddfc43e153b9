"""One file a flow; each tells its story in the order the work happens."""
