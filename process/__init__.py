"""Parts that any long-running program needs: a clock, threads, child processes, an HTTP server, figures as text."""
