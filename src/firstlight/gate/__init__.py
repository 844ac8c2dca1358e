"""Did it get worse? Two sides of one program compared, and a verdict that a CI job can act on."""
