"""The base of every error that Firstlight raises on purpose.

Each room has its own below it, beside the code that raises them: `records.RecordError`,
`measure.case_selection.SelectionError`, `histfactory.ModelError` and so on.
"""


class FirstlightError(Exception):
    """Base of every error that Firstlight raises on purpose; its text is meant for the user."""
