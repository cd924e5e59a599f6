"""What all SQL stores share.

::

    dialect, queries, migrations   statements and schemas as files, made ready for a database
    plans      how each operation is carried out in statements                        (no I/O)
    rows       rows into replies                                                      (no I/O)
    errand     one operation's way to a server: sent again where that is safe         (no I/O)
    kinds      which operations travel together, as rows of a statement for many      (no I/O)
    grants     the rights that a user needs, and how each is tried                    (no I/O)
    batches    concurrent operations of one kind put together; what befalls them      (no I/O)
    awaited_lanes, blocking_lanes   who goes alone and who with others, in a loop and among threads
"""
