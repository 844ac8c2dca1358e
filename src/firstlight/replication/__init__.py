"""A snapshot measured again on this machine: verified, cases that exist here, measured, compared.

Nothing of a snapshot is executed: its cases are looked up by name in this installation, and a
user's own program is run only from a file that the user names, if its hash is the recorded one.
"""
