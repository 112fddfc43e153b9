"""The Prefect side: cache policy, receipt serializer, locks, runners, settings."""
