"""Stands for a package that takes long to import: it looks for fonts, say."""

import time

time.sleep(0.4)


def draw(values):
    print("drawn:", len(values))
