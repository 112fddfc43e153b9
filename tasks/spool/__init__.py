"""Files of records ordered by position, of which any interval is read by range."""
