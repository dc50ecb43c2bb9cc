"""What if: recorded decisions, decided again under other quotas, and limits proposed from what was recorded."""
