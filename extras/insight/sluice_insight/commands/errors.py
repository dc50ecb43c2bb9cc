"""Messages that several commands have."""

NO_TENANT = "there is no tenant; `sluice tenants alter` or `sluice tenants import` makes some"
"""The message for a command that is about tenants."""
