"""The gateway's rules: pure functions on frozen values; time is passed in."""
