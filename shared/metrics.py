"""Counters of a process, without organization labels (design.md 11)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

HANDLED = Counter("rienda_messages_handled_total", "Messages whose effect is committed", ["event"])
REFUSED = Counter("rienda_messages_refused_total", "Messages that became dead letters", ["reason"])
RETRIED = Counter("rienda_messages_retried_total", "Messages put into the retry table")
BATCH_S = Histogram(
    "rienda_batch_seconds",
    "From a batch's arrival to its acknowledgement",
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
BATCH_FAILURES = Counter("rienda_batch_failures_total", "Batches that had to be split")
ANSWERED = Counter("rienda_answers_total", "Questions answered", ["question", "outcome"])
ANSWER_S = Histogram(
    "rienda_answer_seconds",
    "From a question's arrival to its answer",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
)
RELAYED = Counter("rienda_outbox_relayed_total", "Outbox rows acknowledged by their stream")
OUTBOX_WAITING = Gauge("rienda_outbox_waiting", "Outbox rows that no stream has acknowledged")
RECONNECTS = Counter("rienda_bus_reconnects_total", "Reconnects to NATS")
PERMISSION_VIOLATIONS = Counter("rienda_bus_violations_total", "Forbidden by the server")
