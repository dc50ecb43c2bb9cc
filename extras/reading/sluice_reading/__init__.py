"""Parts that extras share which show or steer: tables by SQL, the health port, newest decisions, tables of text."""
