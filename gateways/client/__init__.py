"""The gateway client: publishes request events, reads decisions, mutes clients."""
