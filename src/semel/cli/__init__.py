"""The `semel` command.

    main       the entry point; says what is missing
    commands   the commands, and their common options
    output     sentences and tables for people, JSON for programs
    targets    applications, guards and records that a command names

One module for each command; `checkup` belongs to doctor, `keys_shown` to keys.
"""
