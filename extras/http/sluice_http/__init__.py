"""Quotas for HTTP services: `AsgiQuotas(app, gateway)` around any ASGI application."""

from sluice_http.middleware import AsgiQuotas, HttpQuotas

__all__ = ["AsgiQuotas", "HttpQuotas"]
