"""A bounded load generator for HTTP servers, and its results as a run."""
