"""The command `sluice demo`: embedded brokers, a job, gateways and a load, shown live; scripts use its parts."""
