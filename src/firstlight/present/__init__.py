"""How things are shown, whatever they are: text, numbers, colours, drawings, pages, a terminal."""
