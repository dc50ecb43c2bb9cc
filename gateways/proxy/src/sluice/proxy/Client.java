package sluice.proxy;

/** Who sent a request: the user as a broker names it, ANONYMOUS without a login, and the client-id, "" for none. */
record Client(String user, String clientId) {}
