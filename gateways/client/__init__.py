"""The gateway client: from a request to its answer and its event, and back from the topics to its limits and shares.

`client` has the API, `Gateway`. It completes and checks an event (`publisher`, `events`), charges it on this gateway's
shares (`inline`), adds the waits that were decided (`in_force`, `wait_table`), answers (`answer`) and queues the event
(`publisher`). Records of limits and of earlier waits come back to `in_force`, sums to `inline` and `in_force`, and
decisions on mutations to `answer`. While decisions are stale, `policy` says what happens.
"""
