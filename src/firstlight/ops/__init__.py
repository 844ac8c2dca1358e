"""What people on call need: alert rules, dashboards, manifests, checks, failures on purpose."""
