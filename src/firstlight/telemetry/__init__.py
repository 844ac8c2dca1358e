"""What running programs report about themselves."""
