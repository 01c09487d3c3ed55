"""Programs for whoever works on this repository; no part of what is installed."""
