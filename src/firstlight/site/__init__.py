"""A static site of many snapshots: a list, a page for each, trends over time, any two compared.

    place ──▶ verified? ──▶ facts of a snapshot ──▶ its page and its data ──▶ list, trends
                └─ no: named as refused, with the reason, and nothing of it is shown

Everything is plain files with relative links: it works from any file server, at any path, offline.
"""
