"""Imports go one way, including those inside functions; import-linter checks the rooms."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_import_closes_a_cycle_not_even_inside_a_function() -> None:
    graph = grimp.build_graph("firstlight", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(TopologicalSorter(imported).static_order())  # CycleError names the modules
