"""One module for each screen: functions of a `View` that return data, and the actions of its forms.

overview   what needs a person first, and what the last day came to
in_flight  what runs and what waits, beside what is usual for its route
records    the list with its filters, and finding one by its whole key
tenants    who asks for how much, who misuses keys
coverage   routes, and whether keys count there
audit      who did what and why; CSV and JSON lines
doctor     whether store and settings are fit for use
sample     a fair sample of all records, for rates and shares
filters    ages, times and identities, as addresses have them
key        one key: its story, its place among the states, what a retry would get
unknown    unknown outcomes: grouped, one with its evidence side by side, and what is decided
outbox     dead letters, and effects that wait or were delivered
mismatches keys that were used again for another request
approvals  acts that wait for a second person
"""
