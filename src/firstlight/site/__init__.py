"""A static site of many snapshots: a list, a page for each, trends over time, and comparisons.

    store ──▶ verified? ──▶ facts of a snapshot ──▶ its page and its data ──▶ list, trends
                └─ no: listed as refused, with the reason; none of its content is shown

All files are static with relative links: the site works from any file server, at any path, offline.
"""
