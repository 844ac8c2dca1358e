"""Imports go one way, those inside of functions included; import-linter has the arrows of rooms."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_import_closes_a_cycle_inside_of_a_function_either() -> None:
    graph = grimp.build_graph("firstlight", exclude_type_checking_imports=True, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    list(TopologicalSorter(imported).static_order())  # CycleError names the modules
