"""Grafana boards, Prometheus rules and runbooks, as files: `importlib.resources.files("raxol_otel.dashboards")`."""
