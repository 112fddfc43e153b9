"""Connect to Prefect: cache policy, receipt serializer, locks, runners, settings."""
