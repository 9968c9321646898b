"""Many journals, one scrape: what a sessions directory holds, found without changing anybody's agent."""
