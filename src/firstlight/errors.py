"""The base of every error that Firstlight raises on purpose.

Each package derives its errors from it, beside the code that raises them: `records.RecordError`,
`measure.case_selection.SelectionError`, `histfactory.ModelError` and so on.
"""


class FirstlightError(Exception):
    """Base of every error that Firstlight raises on purpose; its message is for the user."""
