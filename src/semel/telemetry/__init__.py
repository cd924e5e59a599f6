"""Metrics and traces.

metrics                     the table of metrics, and what each event adds to them
prometheus, opentelemetry   keep the numbers in one of the two
monitoring/                 alert rules and a dashboard
"""
