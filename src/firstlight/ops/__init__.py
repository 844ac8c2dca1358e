"""For people on call: alert rules, dashboards, manifests, checklists, deliberate failures."""
