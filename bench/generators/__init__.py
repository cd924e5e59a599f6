"""Who sends the load: wrk where there is one, else a process of our own."""
