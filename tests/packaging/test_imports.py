"""Imports go one way, including those inside functions; import-linter checks the rooms."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

#: Imports that close a cycle, each inside a function, with its reason. The list only shrinks.
CLOSING = {
    # A result that was computed before JAX was imported looks up its derivative when JAX asks.
    ("histfactory.linear_results", "histfactory.exclusion_gradients"),
    ("histfactory.linear_results", "histfactory.first_gradients"),
    ("histfactory.linear_results", "histfactory.fit_gradients"),
}


def test_no_import_closes_a_cycle_except_the_listed_ones() -> None:
    graph = grimp.build_graph("firstlight", exclude_type_checking_imports=True, cache_dir=None)
    closing = {(f"firstlight.{one}", f"firstlight.{other}") for one, other in CLOSING}
    edges = {
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    }
    assert closing <= edges, closing - edges
    others: dict[str, set[str]] = {module: set() for module in graph.modules}
    for importer, imported in edges - closing:
        others[importer].add(imported)
    list(TopologicalSorter(others).static_order())  # CycleError names the modules
