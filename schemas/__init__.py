"""What things are: configuration models, Arrow schemas, records and errors. No I/O, no prefect, no duckdb."""
