"""The commands `sluice top`, `console`, `usage`, `slo`, `whatif` and `advise`: entry points of `sluice.commands`."""
