package sluice.proxy;

/** Who sent a request: the user that a broker has accepted, "" for none, and the client-id, "" for none. */
record Client(String user, String clientId) {}
