"""The `semel` command.

    main       the entry point; says what is not installed
    commands   the group of all commands; migrate, demo, worker, audit
    output     how commands print and end: sentences, tables, JSON, exit codes
    targets    the guard, application and records that arguments name
    views      records and effects as JSON documents and as lines
    outbox     semel outbox and semel dlq
    console    semel console and semel users

The other modules are the command of their name: check, doctor, keys, ledger, notables, routes,
shadow, sql, stats, unknown, worker.
"""
