"""What a run says about itself: composed once, rendered as a page and as Prefect artifacts."""
