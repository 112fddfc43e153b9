"""Access to file systems, all of it: whole files, arrays, links, listings, locks."""
