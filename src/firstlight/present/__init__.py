"""Presentation shared by all rooms: text, numbers, colours, drawings, pages, the terminal."""
