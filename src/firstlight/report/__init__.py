"""What a person sees of a run: one self-contained HTML page (`html.render`)."""
