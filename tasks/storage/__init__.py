"""Where bytes lie: whole files, arrays, links, listings, locks; the one place that touches a file system."""
