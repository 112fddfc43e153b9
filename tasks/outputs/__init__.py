"""What Gristmill made, or another tool, over all domains: validate, inspect, convert, query."""
