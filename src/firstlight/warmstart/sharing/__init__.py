"""A process and a cache that machines share: it asks, checks and sends, and never waits long."""
