"""Small programs that each fail in one way, unless options fix them."""
