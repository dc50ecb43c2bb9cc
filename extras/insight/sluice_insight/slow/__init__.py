"""The cause of a slow client: its waits, its brokers and its own figures on one line of time, and one sentence."""
