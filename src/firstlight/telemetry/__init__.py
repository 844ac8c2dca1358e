"""What running programs say of themselves."""
