"""Commands that only read: `sluice top`, `console`, `explain`, `usage` and so on, entry points of `sluice.commands`."""
