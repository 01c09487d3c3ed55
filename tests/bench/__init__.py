"""`make bench`: figures beside a baseline of the same run."""
