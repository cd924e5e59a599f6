"""Metrics and traces.

metrics                     the table of metrics
metering                    what each event adds to them
prometheus, opentelemetry   the same for each
monitoring/                 alerts and a dashboard
"""
