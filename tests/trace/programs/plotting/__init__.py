"""Stands for a package that takes long to import: it looks for fonts, say."""

# Work, not sleep: on a busy machine it takes longer, as importing JAX does.
FONTS = sum(number % 7 for number in range(4_000_000))


def draw(values):
    print("drawn:", len(values))
