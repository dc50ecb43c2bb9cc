"""The web console and the live view of clients: reads topics and tables, and decides nothing."""
